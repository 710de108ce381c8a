"""What all policies share, and the two policies that follow a fixed rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.types import (
    LONGEST,
    LOOKUP,
    TABLE_BINS,
    Draft,
    Outcome,
    Place,
    Plan,
    SeqOutcome,
    bin_centre,
    logit,
)

_MS_MAX = 1e7
_WATCHED = 8  # rounds without drafts that are learned from at once
_ASIDES = 9  # rounds whose times outside decodes are kept
_COLD = 3  # rounds before their times are believed


class PlainRounds:
    """Summed times, in ms, of the rounds without drafts since the last learning step; all have the same number of sequences."""

    def __init__(self, n_seq: int = 1) -> None:
        self.n_seq = n_seq
        self.rounds = self.depth = 0
        self.t_verify = self.t_round = 0.0

    def mean(self) -> Outcome:
        """The mean of these rounds; there must be at least one."""
        seqs = [SeqOutcome(seq, 0, 0) for seq in range(self.n_seq)]
        t_verify, t_round = self.t_verify / self.rounds, self.t_round / self.rounds
        return Outcome(seqs, t_verify, self.n_seq, t_round=t_round, depth=self.depth)


class ChoiceStats(msgspec.Struct):
    """Counts for one answer (or any stretch between two resets), times in ms; `ms_other` is time outside decodes.

    `rounds_plain` counts rounds in which no draft was even tried.
    """

    rounds: int = 0
    rounds_by_length: dict[int, int] = {}
    rounds_drafted: int = 0
    rounds_plain: int = 0
    rounds_with_companion: int = 0
    ms_draft: float = 0.0
    ms_companion: float = 0.0
    ms_target: float = 0.0
    ms_other: float = 0.0

    def add(self, outcome: Outcome, rounds: int = 1) -> None:
        """Add one round, or several alike."""
        self.rounds += rounds
        lengths = self.rounds_by_length
        for seq in outcome.seqs:
            lengths[seq.n_verified] = lengths.get(seq.n_verified, 0) + rounds
        self.ms_draft += outcome.t_draft * rounds
        self.ms_companion += outcome.t_companion * rounds
        self.ms_target += outcome.t_verify * rounds
        self.ms_other += outcome.aside * rounds
        self.rounds_drafted += rounds * (outcome.draft_steps > 0)
        self.rounds_with_companion += rounds * (outcome.companion_rows > 0)

    def report(self) -> dict[str, Any]:
        out = msgspec.structs.asdict(self)
        out["rounds_by_length"] = dict(sorted(self.rounds_by_length.items()))
        return {name: round(n, 3) if isinstance(n, float) else n for name, n in out.items()}


class Aside:
    """Milliseconds that rounds of one kind take outside their decodes: the shortest of the last few.

    The first rounds run code and touch memory that no cache holds yet, and take several times as long as later ones, so the first
    two are not believed. Other work on the machine only makes a round longer, so the shortest is the best estimate.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_ASIDES)
        self._rounds = 0
        self.ms = 0.0

    def add(self, ms: float, rounds: int = 1) -> None:
        """Add a round, or the mean of several."""
        self._last.append(ms)
        self._rounds += rounds
        if self._rounds >= _COLD:
            self.ms = min(self._last)


class LengthPolicy(ABC):
    """Decides draft lengths, with a cost curve, learned acceptance and statistics.

    One object lives as long as the process and learns across answers. A round skips `plan` if no sequence can draft, and `choose`
    if none did. Not thread-safe.

    others: returns what was learned of sequences drawn the way this one (by number) is; None where that is `learned`.
    """

    def __init__(self, curve: CostCurve | None = None, learned: Acceptance | None = None) -> None:
        self.curve = curve or CostCurve.prior()
        self.learned = learned or Acceptance()
        self.others: Callable[[int], Acceptance | None] = lambda _seq: None
        self.counts = ChoiceStats()
        self._plain = PlainRounds()
        self.plain_aside = Aside()
        """Time outside decodes in rounds without drafts."""

    def learned_of(self, seqs: Sequence[int]) -> Acceptance:
        """What was learned of sequences drawn the way these are; `learned` where they are drawn in several ways."""
        found = {id(one): one for one in map(self.others, seqs)}
        return (next(iter(found.values())) if len(found) == 1 else None) or self.learned

    @abstractmethod
    def plan(self, places: Sequence[Place]) -> Plan:
        """Decide what to draft for the sequences at `places`, of which there is at least one."""

    @abstractmethod
    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Decide how many drafted tokens of each draft to verify, in the order given."""

    def observe(self, outcome: Outcome) -> None:
        """Count the round, and learn from its times."""
        self._catch_up()
        if outcome.seqs:
            clean_times(outcome)
            self.counts.add(outcome)
            self.curve.observe(outcome)

    def watch(self, n_seq: int, t_verify: float, t_round: float, depth: int) -> None:
        """Take note of a round without drafts; called instead of `choose` and `observe`.

        Several are learned from at once, since Python's time for learning counts too.
        """
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
        """Learn from the pending rounds without drafts; their mean time counts as one observation."""
        if self._plain.rounds:
            seen, self._plain = self._plain, PlainRounds(self._plain.n_seq)
            self.learn_plain(seen)

    def learn_plain(self, seen: PlainRounds) -> None:
        """Count these rounds, and learn from their times."""
        mean = seen.mean()
        clean_times(mean)
        self.counts.add(mean, seen.rounds)
        self.counts.rounds_plain += seen.rounds
        self.curve.observe(mean)
        self.plain_aside.add(mean.aside, seen.rounds)

    def renew_costs(self) -> None:
        """Treat the learned decode times as guesses: the number of threads has changed."""
        self._catch_up()
        self.curve.renew()

    def begin_answer(self) -> None:
        """Reset the counts; the curve and what was learned stay."""
        self._catch_up()
        self.counts = ChoiceStats()

    def begin_sequence(self, seq: int) -> None:  # noqa: B027 - some keep nothing of a sequence
        """Note that another sequence takes this number, in the middle of a batch."""

    def move_sequence(self, seq: int, to: int) -> None:  # noqa: B027 - as above
        """Note that the sequence of number `seq` goes on under the free number `to`."""

    def stats(self) -> dict[str, Any]:
        self._catch_up()
        return self.counts.report()


def clean_times(outcome: Outcome) -> None:
    """Set impossible times (NaN included) to 0, which means not measured."""
    total = outcome.t_verify + outcome.t_draft + outcome.t_companion + outcome.t_round
    if 0.0 <= total < _MS_MAX and min(outcome.t_verify, outcome.t_draft) >= 0.0:
        return
    for name in ("t_verify", "t_draft", "t_companion", "t_round"):
        ms = getattr(outcome, name)
        if not 0.0 <= ms < _MS_MAX:
            setattr(outcome, name, 0.0)


class FixedPolicy(LengthPolicy):
    """Always drafts the same number of tokens, as far as a sequence has room."""

    def __init__(
        self, k: int, curve: CostCurve | None = None, learned: Acceptance | None = None
    ) -> None:
        super().__init__(curve, learned)
        self._k = k

    def plan(self, places: Sequence[Place]) -> Plan:
        """Plan k tokens each, as far as they fit."""
        return Plan([min(self._k, place.room) for place in places])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Verify all that was drafted, at most k."""
        return [min(self._k, draft.n) for draft in drafts]


class ConfidencePolicy(LengthPolicy):
    """Drafts on while the draft's own probability of each token is at least `p`.

    The loop's survival test approximates the threshold: the table is 1 for bins that reach p and 0 below, so drafting stops
    within half a logit of p; `choose` then cuts exactly. Lookup drafts carry no probability and are taken whole.
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
        """Plan to draft as long as the draft is sure, up to the limit."""
        return Plan([min(LONGEST, place.room) for place in places], self._table, [0.5])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Verify the tokens before the first that the draft is not sure of."""
        return [self._length(draft) for draft in drafts]

    def _length(self, draft: Draft) -> int:
        if draft.source == LOOKUP:
            return draft.n
        known = min(draft.n, len(draft.p))
        return next((i for i in range(known) if not draft.p[i] >= self._p), known)
