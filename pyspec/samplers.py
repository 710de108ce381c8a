"""Samplers of a chain beyond those that llama-cpp-python adds: logits processors, DRY, and XTC whose chance is coupled."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import llama_cpp
import numpy as np
from llama_cpp import _internals as internals

from pyspec._lib import ffi, lib
from pyspec.errors import OptionError
from pyspec.grammar.masks import read_candidates


def refuse(samplers: Iterable[str]) -> None:
    """Raise OptionError for the first of what a plain Llama, whose chain is llama-cpp-python's own, does not have."""
    for name in samplers:
        raise OptionError(
            f"{name} does not work with logits_all or embedding", "load the model without them"
        )


class ProcessorHook(internals.CustomSampler):  # type: ignore[misc]  # llama_cpp is untyped
    """Runs logits processors in a sampler chain, over the token ids that stand before each row.

    A verified row is sampled after the rows before it were accepted, so the processors see each row once, in order, with the
    ids that plain decoding would have shown them, and nothing beyond the first refused token.
    """

    def __init__(self, processors: Sequence[Any], tokens: Sequence[int]) -> None:
        super().__init__(self._process)
        self._accept_ref = llama_cpp.llama_sampler_i_accept(self._extend)
        self.sampler.iface.contents.accept = self._accept_ref
        self._processors = list(processors)
        self._ids = np.array(tokens, dtype=np.intc)
        self._n = len(tokens)
        self.error: BaseException | None = None
        """What a processor raised: no exception passes through llama.cpp, so the caller has to look."""

    def _extend(self, _sampler: Any, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(self._n + 64, dtype=np.intc)])
        self._ids[self._n] = token
        self._n += 1

    def _process(self, array: Any) -> None:
        if self.error is not None:
            return
        candidates = read_candidates(array)
        logits = np.ascontiguousarray(candidates["logit"])
        try:
            for process in self._processors:
                logits = process(self._ids[: self._n], logits)
            candidates["logit"] = logits
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too is raised where the answer is made
            self.error = error


_CHANCE = -1
"""Stands in the noise for XTC's chance: no token has such an id."""


def xtc_chance(seed: int, position: int) -> float:
    """Uniform in (0, 1), for the token at this position of a text; independent of the noise that draws it."""
    gumbel = ffi.new("double *")
    lib.ps_noise(seed, position, ffi.new("int32_t *", _CHANCE), 1, gumbel)
    return math.exp(-math.exp(-float(gumbel[0])))


class CoupledXtc(internals.CustomSampler):  # type: ignore[misc]  # as above
    """llama.cpp's XTC, which draws whether it excludes anything, with that chance taken from the noise at the token's position.

    So the text at a seed stays the same with any draft and in any batch. Rows are sampled in order, each once, which is how the
    position is known. position: of the first token that is chosen.
    """

    def __init__(self, seed: int, probability: float, threshold: float, position: int) -> None:
        super().__init__(self._exclude)
        self._accept_ref = llama_cpp.llama_sampler_i_accept(self._move_on)
        self.sampler.iface.contents.accept = self._accept_ref
        self._seed, self._probability, self._position = seed, probability, position
        always = 1.0
        self._xtc = llama_cpp.llama_sampler_init_xtc(always, threshold, 1, seed)

    def close(self) -> None:
        """Free llama.cpp's part."""
        llama_cpp.llama_sampler_free(self._xtc)

    def _move_on(self, _sampler: Any, _token: int) -> None:
        self._position += 1

    def _exclude(self, array: Any) -> None:
        if xtc_chance(self._seed, self._position) < self._probability:
            llama_cpp.llama_sampler_apply(self._xtc, array)


class Dry:
    """llama.cpp's DRY samplers of one model. Looking for breakers in each word of a vocabulary takes long, so that it is kept."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, Dry]] = weakref.WeakKeyDictionary()
    _MOST = 8

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __del__(self) -> None:
        for sampler in self._made.values():
            llama_cpp.llama_sampler_free(sampler)

    @classmethod
    def of(cls, llama: Any) -> Dry:
        """Those of a `llama_cpp.Llama`."""
        return cls._all.setdefault(llama, cls())

    def sampler(
        self, vocab: Any, numbers: tuple[float, float, int, int], breakers: Sequence[str]
    ) -> Any:
        """A sampler that has seen nothing. numbers: multiplier, base, allowed length, and how many tokens it looks back."""
        key = (*numbers, *breakers)
        if key not in self._made:
            words = [word.encode() for word in breakers]
            given = (ctypes.c_char_p * len(words))(*words)
            made = llama_cpp.llama_sampler_init_dry(vocab, *numbers, given, len(words))
            self._made[key] = made
        self._made.move_to_end(key)
        copy = llama_cpp.llama_sampler_clone(self._made[key])
        if len(self._made) > self._MOST:
            llama_cpp.llama_sampler_free(self._made.popitem(last=False)[1])
        return copy
