"""The draft lengths that users name, and the policies of one object: one for each length, rule and way of drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import Experience, GoodputPolicy
from pyspec.draft.simple import FixedPolicy, LengthPolicy
from pyspec.errors import OptionError
from pyspec.sampling.options import Draw
from pyspec.sampling.verification import Strict, Verification

MAX_FIXED = 63


class Length(NamedTuple):
    """What `--length` names: "fixed", "companion" or "auto", and the number behind "fixed"."""

    name: str
    value: int = 0


def parse_length(text: str) -> Length:
    """Parse `fixed:K` (0..63), `companion` or `auto`; raises OptionError otherwise."""
    name, colon, value = text.strip().lower().partition(":") if isinstance(text, str) else ("",) * 3
    if name in ("companion", "auto") and not colon:
        return Length(name)
    if name == "fixed" and value in map(str, range(MAX_FIXED + 1)):
        return Length(name, int(value))
    hint = f"use fixed:K with K from 0 to {MAX_FIXED}, companion or auto"
    raise OptionError(f"unknown draft length {str(text)[:40]!r}", hint)


Kind = tuple[Verification, Draw]
"""How a sequence's tokens are verified and drawn: what a draft is worth depends on both."""

MAX_POLICIES = 32
"""Policies kept: rules may differ from call to call."""


class Policies:
    """Policies that share the cost curve, which belongs to the machine, and learn acceptance separately.

    length, rule, draw: defaults for calls that name none. learned: what each policy begins with. companion: whether there is one
    to use. taught: what earlier processes were taught, by the name of its kind. Where many sequences share a round, the policy of
    the majority's kind chooses for all, and each sequence teaches the policy of its own kind.
    """

    def __init__(
        self,
        length: Length,
        curve: CostCurve,
        learned: Acceptance,
        *,
        companion: bool,
        rule: Verification = Strict(),  # noqa: B008 - frozen
        draw: Draw = "greedy",
        taught: Mapping[str, Experience] = MappingProxyType({}),
    ) -> None:
        self.curve, self._learned = curve, learned
        self._length, self._rule, self._draw = length, rule, draw
        self._companion, self._taught = companion, taught
        self._made: dict[tuple[Length, Verification, Draw], LengthPolicy] = {}
        self._kinds: dict[int, Kind] = {}

    def new(self, length: str | None, rule: Verification, draw: Draw) -> LengthPolicy:
        """A policy that has learned nothing yet. Raises OptionError for an invalid length."""
        named = parse_length(length) if length else self._length
        learned = self._learned.under(draw)
        seen = self._taught.get(_name(rule, draw))
        if seen is not None:
            learned.taught(seen.calibration, seen.lookup if draw != "greedy" else None)
        if named.name == "fixed":
            return FixedPolicy(named.value, self.curve, learned)
        auto = named.name == "auto"  # "companion" always uses draft and companion
        policy = GoodputPolicy(self.curve, learned, companion=self._companion, auto=auto)
        if seen is not None:
            policy.begin_with(seen)
        return policy

    def of(
        self, length: str | None, rule: Verification | None = None, draw: Draw | None = None
    ) -> LengthPolicy:
        """The policy for these choices; a new one replaces the least recently used. Raises OptionError."""
        rule_and_draw = rule or self._rule, draw or self._draw
        key = parse_length(length) if length else self._length, *rule_and_draw
        policy = self._made.pop(key, None)
        if policy is None:
            if len(self._made) == MAX_POLICIES:
                self._made.pop(next(iter(self._made)))
            policy = self.new(length, *rule_and_draw)
            policy.others = partial(self._learned_of, length, rule_and_draw)
        self._made[key] = policy
        return policy

    def shared(self, lengths: Mapping[int, str | None]) -> dict[LengthPolicy, list[int]]:
        """Which policy chooses for which sequences, in a round of sequences that name these lengths.

        One policy chooses for all that name the same length. What pays depends on how tokens are verified and drawn, so it is the
        policy of the most common kind.
        """
        groups: dict[Length, list[int]] = {}
        for seq, named in lengths.items():
            groups.setdefault(parse_length(named) if named else self._length, []).append(seq)
        found: dict[LengthPolicy, list[int]] = {}
        for seqs in groups.values():
            kinds = Counter(self._kinds.get(seq, (self._rule, self._draw)) for seq in seqs)
            found[self.of(lengths[seqs[0]], *kinds.most_common(1)[0][0])] = seqs
        return found

    def _learned_of(self, length: str | None, own: Kind, seq: int) -> Acceptance | None:
        """What was learned of sequences of this one's kind; None where that is the policy's own."""
        kind = self._kinds.get(seq, own)
        return None if kind == own else self.of(length, *kind).learned

    def taught(self) -> dict[str, Experience]:
        """What answers have taught so far, by the name of their kind."""
        return {
            _name(rule, draw): policy.experience()
            for (_, rule, draw), policy in self._made.items()
            if isinstance(policy, GoodputPolicy)
        }

    def begin_sequence(self, seq: int, rule: Verification, draw: Draw) -> None:
        """Tell all policies that another sequence takes this number, and how it is verified and drawn."""
        self._kinds[seq] = rule, draw
        for policy in self._made.values():
            policy.begin_sequence(seq)

    def move_sequence(self, seq: int, to: int) -> None:
        """Tell all policies that the sequence of number `seq` goes on under the free number `to`."""
        if seq in self._kinds:
            self._kinds[to] = self._kinds.pop(seq)
        for policy in self._made.values():
            policy.move_sequence(seq, to)


def _name(rule: Verification, draw: Draw) -> str:
    """The name of a kind, under which what was taught is kept."""
    return f"{rule.name} {draw}"
