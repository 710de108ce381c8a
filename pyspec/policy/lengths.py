"""The user's choice of draft length, and the simple policies."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from pyspec.errors import OptionError
from pyspec.policy.base import MAX_DRAFT, LengthPolicy, clean_times, observe_times
from pyspec.policy.features import bin_centre, logit
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.types import LOOKUP, TABLE_BINS, Draft, Outcome, Place, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.cost import CostCurve
    from pyspec.policy.learned import Learned

FIXED_MAX = 63
_HINT = "use fixed:K, confidence:P, companion or auto"


class FixedPolicy(LengthPolicy):
    """Always the same number of drafted tokens, as far as a sequence has room."""

    def __init__(
        self, k: int, curve: CostCurve | None = None, learned: Learned | None = None
    ) -> None:
        super().__init__(curve, learned)
        self._k = k
        self._n_seq = 1

    def plan(self, places: Sequence[Place]) -> Plan:
        """See LengthPolicy."""
        self._n_seq = len(places)
        return Plan([min(self._k, place.room) for place in places])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """See LengthPolicy."""
        return [min(self._k, draft.n) for draft in drafts]

    def observe(self, outcome: Outcome) -> None:
        """See LengthPolicy."""
        clean_times(outcome)
        self.tally.add(outcome, 0.0)
        observe_times(self.curve, outcome, self._n_seq)


class ConfidencePolicy(LengthPolicy):
    """Draft on while the draft's own probability of each token is at least `p`.

    The survival test of the loop stands in for the threshold: its table is 1 for bins that reach
    p and 0 below, so drafting stops within half a logit of p; `choose` then cuts exactly.
    Lookup drafts carry no probability and are taken whole.
    """

    def __init__(
        self,
        p: float,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        max_draft: int = MAX_DRAFT,
    ) -> None:
        super().__init__(curve, learned)
        self._p, self._max_draft, self._n_seq = p, max_draft, 1
        half_bin = bin_centre(1) - bin_centre(0)
        edge = logit(p)
        self._table = [
            1.0 if k == TABLE_BINS - 1 or bin_centre(k) + half_bin / 2.0 > edge else 0.0
            for k in range(TABLE_BINS)
        ]

    def plan(self, places: Sequence[Place]) -> Plan:
        """See LengthPolicy."""
        self._n_seq = len(places)
        return Plan([min(self._max_draft, place.room) for place in places], self._table, [0.5])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """See LengthPolicy."""
        return [self._length(draft) for draft in drafts]

    def _length(self, draft: Draft) -> int:
        if draft.source == LOOKUP:
            return draft.n
        known = min(draft.n, len(draft.p))
        return next((i for i in range(known) if not draft.p[i] >= self._p), known)

    def observe(self, outcome: Outcome) -> None:
        """See LengthPolicy."""
        clean_times(outcome)
        self.tally.add(outcome, 0.0)
        observe_times(self.curve, outcome, self._n_seq)


class Length(msgspec.Struct, frozen=True):
    """What `--length` names; `policy` makes the object that carries it out."""

    def policy(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        companion: bool = False,
    ) -> LengthPolicy:
        """A fresh policy; `companion` says whether there is a companion to use."""
        raise NotImplementedError


class Fixed(Length, frozen=True):
    """Always k drafted tokens."""

    k: int

    def policy(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        companion: bool = False,
    ) -> LengthPolicy:
        """See Length."""
        return FixedPolicy(self.k, curve, learned)


class Confidence(Length, frozen=True):
    """As long as the draft's probability of each token is at least p."""

    p: float

    def policy(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        companion: bool = False,
    ) -> LengthPolicy:
        """See Length."""
        return ConfidencePolicy(self.p, curve, learned)


class Companion(Length, frozen=True):
    """By goodput, draft and companion always on; 0 verified tokens stay possible."""

    def policy(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        companion: bool = False,
    ) -> LengthPolicy:
        """See Length."""
        return GoodputPolicy(
            curve, learned, companion=companion, auto_draft=False, auto_companion=False
        )


class Auto(Length, frozen=True):
    """By goodput; draft and companion are switched off by themselves where they do not pay."""

    def policy(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        companion: bool = False,
    ) -> LengthPolicy:
        """See Length."""
        return GoodputPolicy(curve, learned, companion=companion)


def parse_length(text: str) -> Length:
    """`fixed:K` (0..63), `confidence:P` (0..1), `companion` or `auto`; OptionError otherwise."""
    name, colon, value = text.strip().lower().partition(":")
    if name in ("companion", "auto") and not colon:
        return Companion() if name == "companion" else Auto()
    if name == "fixed":
        if not (value.isascii() and value.isdigit() and len(value) < 5 and int(value) <= FIXED_MAX):
            raise OptionError(
                f"the fixed draft length must be a whole number 0..{FIXED_MAX}", _HINT
            )
        return Fixed(int(value))
    if name == "confidence":
        p = _number(value)
        if not 0.0 <= p <= 1.0:
            raise OptionError("the confidence must be a number between 0 and 1", _HINT)
        return Confidence(p)
    raise OptionError(f"unknown draft length {text[:40]!r}", _HINT)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return inf
