"""Token masks: which tokens may come next in an answer that follows a `Constraint`.

A grammar is untrusted, so its size, depth and the work for one mask are bounded. Masks take some hundredths of a millisecond;
the next one of a grammar that needs longer is computed while the target decodes.
"""

from __future__ import annotations

import ctypes
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import _internals as internals
from llguidance import LLMatcher

from pyspec.errors import InputError
from pyspec.grammar.languages import Constraint
from pyspec.grammar.schemas import LIMITS, STACK
from pyspec.grammar.vocabulary import ByteVocabulary
from pyspec.text.deep import call_deep

CANDIDATES = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
"""The layout of `llama_token_data`."""

_SLOW_S = 1e-3
_KEPT = 32
log = logging.getLogger("pyspec")

SIMPLER = "make the grammar or the schema simpler"

_AHEAD = ThreadPoolExecutor(2, "pyspec-masks")


def _matcher(vocabulary: ByteVocabulary, grammar: str) -> LLMatcher:
    """Return a new matcher; agents send the same grammars with each request. Raises InputError for one that cannot be used."""
    kept = vocabulary.begun
    with vocabulary.lock:
        found = kept.get(grammar)
        if found is not None:
            kept.move_to_end(grammar)
            return found.deep_copy()
    made = call_deep(lambda: _begun(vocabulary, grammar), STACK)
    with vocabulary.lock:
        kept[grammar] = made
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return made.deep_copy()


def _begun(vocabulary: ByteVocabulary, grammar: str) -> LLMatcher:
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=LIMITS)
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise InputError(f"the grammar cannot be used: {_said(matcher)}", SIMPLER)
    if not vocabulary.allowed(mask).any():
        raise InputError("the grammar allows no token of this vocabulary", SIMPLER)
    return matcher


def _said(matcher: LLMatcher) -> str:
    """The first lines of an error; more of them would repeat the grammar."""
    lines = [line.strip() for line in matcher.get_error().splitlines()[:4]]
    return " ".join(filter(None, lines))[:200]


def _chosen(vocabulary: ByteVocabulary, constraint: Constraint) -> LLMatcher | None:
    """Return a matcher of the language or the looser one; None if neither can be used and the answer need not follow one."""
    try:
        return _matcher(vocabulary, constraint.language.grammar)
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
    """The masks of one answer. error: why there are no more of them, or empty."""

    def __init__(self, constraint: Constraint, llama: Any) -> None:
        self._vocabulary = ByteVocabulary.of(llama)
        self._matcher = _chosen(self._vocabulary, constraint)
        self._trigger, self._tail = constraint.trigger.encode(), b""
        self._ahead: Future[npt.NDArray[np.bool_]] | None = None
        self._slow = False
        self.error = ""

    def accept(self, token: int) -> None:
        """Continue the text with this token."""
        if self.error or self._matcher is None:
            return
        if self._trigger:
            self._wait_for_trigger(token)
            return
        self._settled()
        if not self._matcher.consume_token(self._vocabulary.read(token)):
            self._fail(_said(self._matcher))
        elif self._slow:
            self._ahead = _AHEAD.submit(self._computed, self._matcher)

    def _wait_for_trigger(self, token: int) -> None:
        """Look for the trigger; a text behind it that the language does not have is left alone, and the search goes on."""
        piece = self._vocabulary.piece(token)
        text = self._tail + piece
        _, found, behind = text.partition(self._trigger)
        if not found:
            self._tail = text[1 - len(self._trigger) :] if len(self._trigger) > 1 else b""
            return
        self._tail = b""
        spelled = [self._vocabulary.byte_ids[byte] for byte in self._trigger + behind]
        ids = [self._vocabulary.read(token)] if piece == self._trigger else spelled
        assert self._matcher is not None  # noqa: S101 - for the type checker
        begun = self._matcher.deep_copy()
        if begun.try_consume_tokens(ids) == len(ids):
            self._matcher, self._trigger = begun, b""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """Return which tokens may come next, as [n_vocab] booleans; None for all."""
        matcher = self._matcher
        if self._trigger or matcher is None:
            return None
        ahead = self._settled()
        return self._computed(matcher) if ahead is None else ahead

    def _settled(self) -> npt.NDArray[np.bool_] | None:
        """The mask that was computed ahead; the matcher is then free."""
        ahead, self._ahead = self._ahead, None
        return None if ahead is None else ahead.result()

    def _computed(self, matcher: LLMatcher) -> npt.NDArray[np.bool_]:
        start = perf_counter()
        mask = matcher.compute_bitmask()
        self._slow = perf_counter() - start > _SLOW_S
        if matcher.is_error():
            self._fail(_said(matcher))
        allowed = self._vocabulary.allowed(mask)
        if (
            not matcher.is_accepting()
        ):  # any-token expressions of llguidance hold ends, which it then refuses
            allowed[self._vocabulary.ends] = False
        if not self.error and not allowed.any():
            self._fail("it allows no token of this vocabulary here")
        return allowed

    def _fail(self, why: str) -> None:
        self.error = f"the grammar cannot be followed: {why}"


class MaskHook(internals.CustomSampler):  # type: ignore[misc]  # llama_cpp is untyped
    """A sampler that applies masks."""

    def __init__(self, masks: Masks) -> None:
        super().__init__(self._bar)
        self._accept_ref = llama_cpp.llama_sampler_i_accept(self._extend)
        self.sampler.iface.contents.accept = self._accept_ref
        self.masks = masks

    @property
    def error(self) -> InputError | None:
        """Why the answer cannot go on, if it cannot."""
        why = self.masks.error
        return InputError(why, SIMPLER) if why else None

    def _extend(self, _sampler: Any, token: int) -> None:
        self.masks.accept(token)

    def _bar(self, array: Any) -> None:
        allowed = None if self.masks.error else self.masks.allowed()
        candidates = read_candidates(array)
        if self.masks.error:
            candidates["logit"] = -np.inf  # no token is chosen, which the caller notices
        elif allowed is not None:
            candidates["logit"][~allowed[candidates["id"]]] = -np.inf


class MaskProcessor:
    """A logits processor of llama-cpp-python's that applies masks, for a model that it samples itself."""

    def __init__(self, masks: Masks) -> None:
        self._masks, self._seen = masks, -1

    def __call__(self, ids: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Bar the scores of tokens that may not follow these, of which the first call brings the prompt."""
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
