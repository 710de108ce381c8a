"""What all policies share, and the one that drafts a fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.types import Draft, Outcome, Place, Plan, SeqOutcome

_MS_MAX = 1e7
WATCHED = 8  # rounds without drafts that are learned from at once
_ASIDES = 9  # means of times outside decodes that are kept
_COLD = 3  # rounds before their times are believed


class PlainRound(NamedTuple):
    """A round without drafts, times in ms; see `Outcome`. t_round: from the decode on, since what comes before is for drafts."""

    n_seq: int
    t_verify: float
    t_round: float
    depth: int


class LengthPolicy(ABC):
    """Decides draft lengths, with a cost curve and learned acceptance.

    One object lives as long as the process and learns across answers. A round skips `plan` if no sequence can draft, and `choose`
    if none did. Not thread-safe.

    others: returns what was learned of sequences drawn the way this one (by number) is; None where that is `learned`.
    """

    def __init__(self, curve: CostCurve | None = None, learned: Acceptance | None = None) -> None:
        self.curve = curve or CostCurve.prior()
        self.learned = learned or Acceptance()
        self.others: Callable[[int], Acceptance | None] = lambda _seq: None
        self._plain: list[PlainRound] = []
        self._asides: deque[float] = deque(maxlen=_ASIDES)
        self._n_plain = 0  # rounds without drafts

    @property
    def plain_aside(self) -> float:
        """Milliseconds that a round without drafts takes outside its decode: the shortest of the last few means.

        Other work on the machine only makes a round longer. The first two run code that no cache holds yet, and are not believed.
        """
        return min(self._asides) if self._n_plain >= _COLD else 0.0

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
        """Learn from a round's times."""
        self.catch_up()
        if outcome.seqs:
            clean_times(outcome)
            self.curve.observe(outcome)

    def watch(self, seen: PlainRound, seqs: Sequence[SeqOutcome] = ()) -> None:
        """Take note of a round in which nothing was verified and no model drafted; called instead of `observe`.

        Several are learned from at once, since Python's time counts too. seqs: what would have become of drafts by lookup.
        """
        if self._plain and self._plain[0].n_seq != seen.n_seq:
            self.catch_up()
        self._plain.append(seen)
        if len(self._plain) >= WATCHED:
            self.catch_up()

    def catch_up(self) -> None:
        """Learn from the pending rounds without drafts; their mean time counts as one observation."""
        if self._plain:
            seen, self._plain = self._plain, []
            self.learn_plain(seen)

    def learn_plain(self, seen: Sequence[PlainRound]) -> None:
        """Learn from the times of these rounds of as many sequences each."""
        t_verify, t_round = (fmean(times) for times in [*zip(*seen)][1:3])
        n_seq, depth = seen[0].n_seq, seen[-1].depth
        seqs = [SeqOutcome(seq, 0, 0) for seq in range(n_seq)]
        mean = Outcome(seqs, t_verify, n_seq, t_round=t_round, depth=depth)
        clean_times(mean)
        self.curve.observe(mean)
        self._asides.append(mean.aside)
        self._n_plain += len(seen)

    def renew_costs(self) -> None:
        """Treat the learned decode times as guesses: the number of threads has changed."""
        self.catch_up()
        self.curve.renew()

    def begin_sequence(self, seq: int) -> None:
        """Note that another sequence takes this number; the curve and what was learned stay."""
        self.catch_up()

    def move_sequence(self, seq: int, to: int) -> None:  # noqa: B027 - as above
        """Note that the sequence of number `seq` goes on under the free number `to`."""


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
