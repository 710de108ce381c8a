"""Token masks: which tokens may come next in an answer that follows a `Constraint`.

A grammar is untrusted, so its size, depth and the work for one mask are bounded. Masks of most take some hundredths of a
millisecond.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import _internals as internals
from llguidance import LLMatcher

from pyspec.errors import InputError
from pyspec.grammar.languages import Constraint
from pyspec.grammar.tokens import SIMPLER, ByteVocabulary, Skeleton, reason

CANDIDATES = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
"""The layout of `llama_token_data`."""

_SLOW_S = 2e-3
log = logging.getLogger("pyspec")


def _chosen(vocabulary: ByteVocabulary, constraint: Constraint) -> LLMatcher | None:
    """Return a matcher of the language or the looser one; None if neither can be used and the answer need not follow one."""
    try:
        return vocabulary.matcher(constraint.language.grammar)
    except InputError as error:
        log.info("%s", error)
        if constraint.looser is None and not constraint.trigger:
            raise
    if constraint.looser is None:
        return None
    return _chosen(vocabulary, Constraint(constraint.looser, constraint.trigger))


def check_constraint(constraint: Constraint, llama: Any) -> None:
    """Raise InputError for a constraint that cannot be used with a `llama_cpp.Llama`."""
    _chosen(ByteVocabulary.of(llama), constraint)


class Masks:
    """The masks of one answer."""

    def __init__(self, constraint: Constraint, llama: Any) -> None:
        self._vocabulary = ByteVocabulary.of(llama)
        self._matcher = _chosen(self._vocabulary, constraint)
        self._trigger, self._tail = constraint.trigger.encode(), b""
        self._skeleton = Skeleton(self._vocabulary, llama.tokenize)
        self._due: list[int] | None = None
        self._slow = False  # whether a mask takes so long that only what is forced is foretold
        self.error = ""  # why there are no more masks; empty while there are

    @property
    def n_vocab(self) -> int:
        return self._vocabulary.n

    @property
    def _applied(self) -> LLMatcher | None:
        """The matcher, if there is one and it applies already."""
        return None if self._trigger or self.error else self._matcher

    def accept(self, token: int) -> None:
        if self._matcher is None or self.error:
            return
        self._skeleton.accept(token)
        if self._trigger:
            self._wait_for_trigger(self._matcher, token)
            return
        self._due = self._due[1:] if self._due and self._due[0] == token else None
        if not self._matcher.consume_token(self._vocabulary.read(token)):
            self._fail(reason(self._matcher))

    def _wait_for_trigger(self, matcher: LLMatcher, token: int) -> None:
        """Look for the trigger. If the language does not have the text behind it, the search goes on."""
        piece = self._vocabulary.piece(token)
        text = self._tail + piece
        _, found, behind = text.partition(self._trigger)
        if not found:
            self._tail = text[1 - len(self._trigger) :] if len(self._trigger) > 1 else b""
            return
        self._tail = b""
        spelled = [self._vocabulary.byte_ids[byte] for byte in self._trigger + behind]
        ids = [self._vocabulary.read(token)] if piece == self._trigger else spelled
        begun = matcher.deep_copy()
        if begun.try_consume_tokens(ids) == len(ids):
            self._matcher, self._trigger = begun, b""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """Return which tokens may come next, as [n_vocab] booleans; None for all.

        A text that has to come is written with the tokens of the target's tokenizer, since models go on badly after others.
        """
        due = self._forced_now()
        if not due:
            return self.permitted()
        allowed = np.zeros(self._vocabulary.n, np.bool_)
        allowed[due[0]] = True
        return allowed

    def _forced_now(self) -> list[int]:
        matcher = self._applied
        if matcher is None:
            return []
        if not self._due:
            found = self._skeleton.forced(matcher)
            self._due = found[: self.allows(found)] if found else []
        return self._due

    def permitted(self) -> npt.NDArray[np.bool_] | None:
        """Return which tokens the grammar has next, as [n_vocab] booleans; None for all."""
        matcher = self._applied
        if matcher is None:
            return None
        start = perf_counter()
        allowed = self._vocabulary.allowed(matcher.compute_bitmask())
        if matcher.is_error():
            allowed[:] = False
        elif not matcher.is_accepting():
            # any-token expressions of llguidance hold ends, which it then refuses
            allowed[self._vocabulary.ends] = False
        self._slow = perf_counter() - start > _SLOW_S
        if not allowed.any():
            self._fail(reason(matcher) if matcher.is_error() else "it allows no token here")
        return allowed

    # -- drafts --------------------------------------------------------------------------------------------------------

    def forced(self, most: int) -> list[int]:
        """Return up to `most` tokens that come next, or are likely to: between parts of JSON, only spaces are in doubt."""
        matcher, due = self._applied, self._forced_now()
        if matcher is None:
            return []
        found = self._skeleton.tokens(matcher, spaces=not self._slow)
        return (found if found[: len(due)] == due else due)[:most]

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, one after the other."""
        if self._applied is None:
            return len(tokens)
        return self._applied.validate_tokens([self._vocabulary.read(token) for token in tokens])

    def _fail(self, why: str) -> None:
        self.error = f"the grammar cannot be followed: {why}"


class SamplerHook(internals.CustomSampler):  # type: ignore[misc]  # llama_cpp is untyped
    """A sampler in Python. `apply` changes a row's candidates; `accept` hears with which token the answer goes on."""

    def __init__(self) -> None:
        super().__init__(self.apply)
        self._accept_ref = llama_cpp.llama_sampler_i_accept(lambda _, token: self.accept(token))
        self.sampler.iface.contents.accept = self._accept_ref


class MaskHook(SamplerHook):
    """A sampler that applies masks."""

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self.masks, self._ids = masks, np.arange(masks.n_vocab, dtype=np.intc)

    @property
    def error(self) -> InputError | None:
        """Why the answer cannot go on, if it cannot."""
        why = self.masks.error
        return InputError(why, SIMPLER) if why else None

    def accept(self, token: int) -> None:
        self.masks.accept(token)

    def apply(self, array: Any) -> None:
        allowed = None if self.masks.error else self.masks.allowed()
        candidates = read_candidates(array)
        if self.masks.error:
            candidates["logit"] = -np.inf  # no token is chosen, which the caller notices
        elif allowed is not None:
            ids = candidates["id"]
            # in their order, as usual, they need not be looked up, which takes five times as long
            known = allowed if np.array_equal(ids, self._ids) else allowed[ids]
            candidates["logit"][~known] = -np.inf


class MaskProcessor:
    """A logits processor of llama-cpp-python's that applies masks, for a model that it samples itself."""

    def __init__(self, masks: Masks) -> None:
        self._masks, self._seen = masks, -1

    def __call__(self, ids: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Bar the tokens that may not follow `ids`. The first call brings the prompt."""
        for token in ids[self._seen :] if self._seen >= 0 else ():
            self._masks.accept(int(token))
        self._seen = len(ids)
        allowed = self._masks.allowed()
        if self._masks.error:
            raise InputError(self._masks.error, SIMPLER)
        if allowed is not None:
            scores[~allowed] = -np.inf
        return scores


def read_candidates(array: Any) -> npt.NDArray[Any]:
    """Return a writable view of the candidates of a `llama_token_data_array`."""
    size = array.contents.size
    block = (llama_cpp.llama_token_data * size).from_address(
        ctypes.addressof(array.contents.data.contents)
    )
    return np.frombuffer(block, dtype=CANDIDATES)
