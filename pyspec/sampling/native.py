"""Samplers that llama-cpp-python does not add to a chain: logits processors, DRY, and XTC with a coupled random choice."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import llama_cpp
import numpy as np

from pyspec._lib import ffi, lib
from pyspec.errors import OptionError
from pyspec.grammar.masks import SamplerHook, read_candidates
from pyspec.text.budget import Budget


def refuse(samplers: Iterable[str]) -> None:
    """Raise OptionError for the first sampler that a plain Llama, with llama-cpp-python's own chain, does not have."""
    for name in samplers:
        raise OptionError(
            f"{name} does not work with logits_all or embedding", "load the model without them"
        )


class ProcessorHook(SamplerHook):
    """Runs logits processors in a sampler chain, on the token ids before each row.

    A verified row is sampled after the rows before it were accepted. So the processors see each row once, in order, with the same
    ids as in plain decoding, and nothing beyond the first refused token.
    """

    def __init__(self, processors: Sequence[Any], tokens: Sequence[int]) -> None:
        super().__init__()
        self._processors = list(processors)
        self._ids = np.array(tokens, dtype=np.intc)
        self._n = len(tokens)
        self.error: BaseException | None = None
        """What a processor raised: exceptions cannot pass through llama.cpp, so the caller has to look here."""

    def accept(self, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(self._n + 64, dtype=np.intc)])
        self._ids[self._n] = token
        self._n += 1

    def apply(self, array: Any) -> None:
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


class BudgetHook(SamplerHook):
    """Leaves only the token that a budget for reasoning says has to come."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def accept(self, token: int) -> None:
        self._budget.accept(token)

    def apply(self, array: Any) -> None:
        token = self._budget.next
        if token is None:
            return
        candidates = read_candidates(array)
        found = candidates["id"] == token
        if np.isfinite(candidates["logit"][found]).any():
            candidates["logit"][~found] = -np.inf
        else:  # a grammar has something else here
            self._budget.give_up()


_CHANCE = -1
"""Token id that stands for XTC's random choice in the noise: no token has it."""


def xtc_chance(seed: int, position: int) -> float:
    """Uniform in (0, 1), for the token at this position; independent of the noise that draws it."""
    gumbel = ffi.new("double *")
    lib.ps_noise(seed, position, ffi.new("int32_t *", _CHANCE), 1, gumbel)
    return math.exp(-math.exp(-float(gumbel[0])))


class CoupledXtc(SamplerHook):
    """llama.cpp's XTC, which decides at random whether to exclude anything; here the noise at the token's position decides.

    So the text for a seed stays the same with any draft and in any batch. Rows are sampled in order, each once, which gives the
    position. position: of the first token that is chosen.
    """

    def __init__(self, seed: int, probability: float, threshold: float, position: int) -> None:
        super().__init__()
        self._seed, self._probability, self._position = seed, probability, position
        always = 1.0
        self._xtc = llama_cpp.llama_sampler_init_xtc(always, threshold, 1, seed)

    def close(self) -> None:
        """Free llama.cpp's part."""
        llama_cpp.llama_sampler_free(self._xtc)

    def accept(self, token: int) -> None:
        self._position += 1

    def apply(self, array: Any) -> None:
        if xtc_chance(self._seed, self._position) < self._probability:
            llama_cpp.llama_sampler_apply(self._xtc, array)


class Dry:
    """llama.cpp's DRY samplers of one model; kept, since looking for breakers in each word of a vocabulary takes long."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, Dry]] = weakref.WeakKeyDictionary()
    _MAX_MADE = 8

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __del__(self) -> None:
        for sampler in self._made.values():
            llama_cpp.llama_sampler_free(sampler)

    @classmethod
    def of(cls, llama: Any) -> Dry:
        return cls._all.setdefault(llama, cls())

    def sampler(
        self, vocab: Any, numbers: tuple[float, float, int, int], breakers: Sequence[str]
    ) -> Any:
        """A sampler that has seen no tokens. numbers: multiplier, base, allowed length, and how many tokens it looks back."""
        key = (*numbers, *breakers)
        if key not in self._made:
            words = [word.encode() for word in breakers]
            array = (ctypes.c_char_p * len(words))(*words)
            made = llama_cpp.llama_sampler_init_dry(vocab, *numbers, array, len(words))
            self._made[key] = made
        self._made.move_to_end(key)
        copy = llama_cpp.llama_sampler_clone(self._made[key])
        if len(self._made) > self._MAX_MADE:
            llama_cpp.llama_sampler_free(self._made.popitem(last=False)[1])
        return copy
