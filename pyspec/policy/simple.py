"""What all policies share, and the two that follow a fixed rule."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.policy.acceptance import Acceptance
from pyspec.policy.cost import CostCurve
from pyspec.policy.types import (
    LONGEST,
    LOOKUP,
    TABLE_BINS,
    Draft,
    Outcome,
    Place,
    Plan,
    Policy,
    SeqOutcome,
    bin_centre,
    logit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MS_MAX = 1e7
_WATCHED = 8  # rounds without drafts that are learned from at once
_ASIDES = 9  # rounds whose times outside decodes are kept
_COLD = 3  # rounds before one is believed


class PlainRounds:
    """Rounds without drafts since they were last learned from, all of as many sequences: times in ms, together."""

    def __init__(self, n_seq: int = 1) -> None:
        self.n_seq = n_seq
        self.rounds = self.depth = 0
        self.t_verify = self.t_round = 0.0

    def mean(self) -> Outcome:
        """One round like them; there is at least one."""
        seqs = [SeqOutcome(seq, 0, 0) for seq in range(self.n_seq)]
        t_verify, t_round = self.t_verify / self.rounds, self.t_round / self.rounds
        return Outcome(seqs, t_verify, self.n_seq, t_round=t_round, depth=self.depth)


class ChoiceStats(msgspec.Struct):
    """Counts of one answer (or of any stretch between two resets), times in ms; `ms_other` is what lies beside decodes.

    `rounds_plain` drafted nothing, not in vain either, and took `ms_plain` altogether.
    """

    rounds: int = 0
    rounds_by_length: dict[int, int] = {}
    rounds_drafted: int = 0
    rounds_plain: int = 0
    rounds_with_companion: int = 0
    tokens_predicted: float = 0.0
    tokens_accepted: int = 0
    tokens_relaxed: int = 0
    tokens_verified: int = 0
    tokens_emitted: int = 0
    ms_draft: float = 0.0
    ms_companion: float = 0.0
    ms_target: float = 0.0
    ms_other: float = 0.0
    ms_plain: float = 0.0

    def add(self, outcome: Outcome, predicted: float = 0.0, rounds: int = 1) -> None:
        """One round, or so many alike; `predicted` is the sum of survivals of the tokens that were verified."""
        self.rounds += rounds
        self.tokens_predicted += predicted
        lengths = self.rounds_by_length
        for seq in outcome.seqs:
            lengths[seq.n_verified] = lengths.get(seq.n_verified, 0) + rounds
            self.tokens_accepted += seq.n_accepted * rounds
            self.tokens_relaxed += seq.n_relaxed * rounds
            self.tokens_verified += seq.n_verified * rounds
            self.tokens_emitted += (seq.n_accepted + 1) * rounds
        self.ms_draft += outcome.t_draft * rounds
        self.ms_companion += outcome.t_companion * rounds
        self.ms_target += outcome.t_verify * rounds
        self.ms_other += outcome.aside * rounds
        self.rounds_drafted += rounds * (outcome.draft_steps > 0)
        self.rounds_with_companion += rounds * (outcome.companion_rows > 0)

    def report(self) -> dict[str, Any]:
        """The statistics as plain values."""
        out = msgspec.structs.asdict(self)
        out["rounds_by_length"] = dict(sorted(self.rounds_by_length.items()))
        return {name: round(n, 3) if isinstance(n, float) else n for name, n in out.items()}


class Aside:
    """Milliseconds that rounds of one kind take beside their decodes: the shortest of the last few.

    The first rounds run code and touch memory that no cache holds, and take several times what all later ones do: of one
    or two nothing is believed. Whatever else works on the machine only makes a round longer.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_ASIDES)
        self._rounds = 0
        self.ms = 0.0

    def add(self, ms: float, rounds: int = 1) -> None:
        """Another round, or the mean of so many."""
        self._last.append(ms)
        self._rounds += rounds
        if self._rounds >= _COLD:
            self.ms = min(self._last)


class LengthPolicy(Policy):
    """A policy with a cost curve, what was learned of acceptance, and statistics.

    others: what was learned of texts that are drawn as this one is, by its number; None where that is `learned`.
    """

    def __init__(self, curve: CostCurve | None = None, learned: Acceptance | None = None) -> None:
        self.curve = curve or CostCurve.prior()
        self.learned = learned or Acceptance()
        self.others: Callable[[int], Acceptance | None] = lambda _seq: None
        self.counts = ChoiceStats()
        self._plain = PlainRounds()
        self.plain_aside = Aside()
        """Of rounds without drafts."""

    def learned_of(self, seqs: Sequence[int]) -> Acceptance:
        """What was learned of texts drawn as these are; `learned` where they are drawn in several ways."""
        found = {id(one): one for one in map(self.others, seqs)}
        return (next(iter(found.values())) if len(found) == 1 else None) or self.learned

    def observe(self, outcome: Outcome) -> None:
        """Count the round, and time its decodes."""
        self._catch_up()
        if outcome.seqs:
            clean_times(outcome)
            self.counts.add(outcome)
            self.curve.observe(outcome)

    def watch(self, n_seq: int, t_verify: float, t_round: float, depth: int) -> None:
        """Keep in mind a round without drafts; several are learned from at once, since Python takes its time beside decodes."""
        if self._plain.n_seq != n_seq:
            self._catch_up()
            self._plain.n_seq = n_seq
        seen = self._plain
        seen.rounds += 1
        seen.t_verify += t_verify
        seen.t_round += t_round
        seen.depth = depth
        if seen.rounds >= _WATCHED:
            self._catch_up()

    def _catch_up(self) -> None:
        """Learn from the rounds without drafts: their mean time counts as one."""
        if self._plain.rounds:
            seen, self._plain = self._plain, PlainRounds(self._plain.n_seq)
            self.learn_plain(seen)

    def learn_plain(self, seen: PlainRounds) -> None:
        """Count the rounds, and time them."""
        mean = seen.mean()
        clean_times(mean)
        self.counts.add(mean, rounds=seen.rounds)
        self.counts.rounds_plain += seen.rounds
        self.counts.ms_plain += mean.t_round * seen.rounds
        self.curve.observe(mean, seen.rounds)
        self.plain_aside.add(mean.aside, seen.rounds)

    def renew_costs(self) -> None:
        """What decodes took is a guess again."""
        self._catch_up()
        self.curve.renew()

    def begin_answer(self) -> None:
        """New counts; the curve and what was learned stay."""
        self._catch_up()
        self.counts = ChoiceStats()

    def begin_sequence(self, seq: int) -> None:
        """Nothing is kept by sequence."""

    def stats(self) -> dict[str, Any]:
        """The counts of this answer."""
        self._catch_up()
        return self.counts.report()


def clean_times(outcome: Outcome) -> None:
    """Make times that cannot be, NaN included, 0: not measured."""
    total = outcome.t_verify + outcome.t_draft + outcome.t_companion + outcome.t_round
    if 0.0 <= total < _MS_MAX and min(outcome.t_verify, outcome.t_draft) >= 0.0:
        return
    for name in ("t_verify", "t_draft", "t_companion", "t_round"):
        ms = getattr(outcome, name)
        if not 0.0 <= ms < _MS_MAX:
            setattr(outcome, name, 0.0)


class FixedPolicy(LengthPolicy):
    """Always the same number of drafted tokens, as far as a sequence has room."""

    def __init__(
        self, k: int, curve: CostCurve | None = None, learned: Acceptance | None = None
    ) -> None:
        super().__init__(curve, learned)
        self._k = k

    def plan(self, places: Sequence[Place]) -> Plan:
        """K tokens each, as far as they fit."""
        return Plan([min(self._k, place.room) for place in places])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """All that was drafted, K at most."""
        return [min(self._k, draft.n) for draft in drafts]


class ConfidencePolicy(LengthPolicy):
    """Draft on while the draft's own probability of each token is at least `p`.

    The survival test of the loop stands in for the threshold: its table is 1 for bins that reach
    p and 0 below, so drafting stops within half a logit of p; `choose` then cuts exactly.
    Lookup drafts carry no probability and are taken whole.
    """

    def __init__(
        self, p: float, curve: CostCurve | None = None, learned: Acceptance | None = None
    ) -> None:
        super().__init__(curve, learned)
        self._p = p
        half_bin = bin_centre(1) - bin_centre(0)
        edge = logit(p)
        self._table = [
            1.0 if k == TABLE_BINS - 1 or bin_centre(k) + half_bin / 2.0 > edge else 0.0
            for k in range(TABLE_BINS)
        ]

    def plan(self, places: Sequence[Place]) -> Plan:
        """As long as the draft is sure, up to its longest."""
        return Plan([min(LONGEST, place.room) for place in places], self._table, [0.5])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """The tokens before the first that the draft is not sure of."""
        return [self._length(draft) for draft in drafts]

    def _length(self, draft: Draft) -> int:
        if draft.source == LOOKUP:
            return draft.n
        known = min(draft.n, len(draft.p))
        return next((i for i in range(known) if not draft.p[i] >= self._p), known)
