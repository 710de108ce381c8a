"""The policies of one object: one for each draft length, rule and way of drawing that its calls name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from functools import partial

from pyspec.policy.acceptance import Acceptance
from pyspec.policy.cost import CostCurve
from pyspec.policy.lengths import Length, make_policy, parse_length
from pyspec.policy.simple import LengthPolicy
from pyspec.sampling.noise import Draw
from pyspec.sampling.verification import Margin, Strict, Verification

_STRICT = Strict()

_CHEAP, _ROWS = 0.15, 5  # of a decode, for each row beyond the first; of a decode of so many rows

MAX_POLICIES = 32
"""Policies kept: rules may differ from call to call."""


class Policies:
    """Policies that share the cost curve, which belongs to the machine, and learn acceptance separately.

    length, rule, draw: defaults for calls that name none. learned: what each policy begins with. companion: whether there is one
    to use. Where many sequences share a round, the policy of the majority chooses for all, and each sequence teaches the policy
    of its own kind.
    """

    def __init__(
        self,
        length: Length,
        curve: CostCurve,
        learned: Acceptance,
        *,
        companion: bool,
        rule: Verification = _STRICT,
        draw: Draw = "greedy",
    ) -> None:
        self.curve, self._learned = curve, learned
        self._length, self._rule, self._draw = length, rule, draw
        self._companion = companion
        self._made: dict[tuple[Length, Verification, Draw], LengthPolicy] = {}
        self._draws: dict[int, Draw] = {}

    def new(self, length: str | None, rule: Verification, draw: Draw) -> LengthPolicy:
        """A policy that has learned nothing yet. Raises OptionError for an invalid length."""
        named = parse_length(length) if length else self._length
        learned = self._learned.under(draw, relaxing=isinstance(rule, Margin))
        whole = draw == "block"
        return make_policy(named, self.curve, learned, companion=self._companion, whole=whole)

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
            policy.others = partial(self._learned_of, length, *rule_and_draw)
        self._made[key] = policy
        return policy

    def shared(self, lengths: Mapping[int, str | None]) -> dict[LengthPolicy, list[int]]:
        """Which policy chooses for which sequences, in a round of sequences that name these lengths.

        One policy chooses for all that name the same length. What pays depends on how tokens are drawn, so it is the policy of
        the most common way.
        """
        groups: dict[Length, list[int]] = {}
        for seq, named in lengths.items():
            groups.setdefault(parse_length(named) if named else self._length, []).append(seq)
        found: dict[LengthPolicy, list[int]] = {}
        for seqs in groups.values():
            draws = Counter(self._draws.get(seq, self._draw) for seq in seqs)
            found[self.of(lengths[seqs[0]], draw=draws.most_common(1)[0][0])] = seqs
        return found

    def _learned_of(
        self, length: str | None, rule: Verification, own: Draw, seq: int
    ) -> Acceptance | None:
        """What was learned of sequences drawn the way this one is; None where that is the policy's own way."""
        draw = self._draws.get(seq, own)
        return None if draw == own else self.of(length, rule, draw).learned

    @property
    def rows_are_cheap(self) -> bool:
        """Whether verifying a draft as a whole is faster than choosing its length by the tokens that were drawn.

        It accepts more, but no row can be saved. On recorded rows of three drafts it was as fast or faster where a further row
        costs up to 0.15 of a decode (bench/results/blocks).
        """
        return self.curve.target.further(_ROWS) <= _CHEAP

    @property
    def temper(self) -> int:
        """The draft's temperature as it was known at the start; see `Acceptance`."""
        return self._learned.temper

    def taught(self, temper: int = 0) -> Acceptance | None:
        """What strict answers taught about a model's drafts since this was made, added to what was known; None if nothing.

        temper: of the engine, as `Acceptance` has it.
        """
        known, found = self._learned, deepcopy(self._learned)
        found.temper = temper
        tables = {"greedy": "calibration", "coupled": "coupled", "block": "block"}
        for (_, rule, draw), policy in self._made.items():
            name, own = tables.get(draw), policy.learned.calibration
            if name and isinstance(rule, Strict) and own.seen != getattr(known, name).seen:
                setattr(found, name, deepcopy(own))
        return None if found == known else found

    def begin_sequence(self, seq: int, draw: Draw) -> None:
        """Tell all policies that another sequence takes this number, and how it is drawn."""
        self._draws[seq] = draw
        for policy in self._made.values():
            policy.begin_sequence(seq)
