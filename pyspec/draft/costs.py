"""What a round's decodes cost: the times of target, draft and companion, learned from rounds."""

from __future__ import annotations

from collections.abc import Mapping

from pyspec.draft.row_times import KeptTime, RowTimes, expand
from pyspec.draft.types import Outcome

ROWS: Mapping[int, float] = {
    1: 10.0, 2: 14.4, 3: 16.8, 4: 19.6, 5: 26.3, 6: 28.5, 8: 30.4, 12: 40.0, 16: 49.4,
}  # fmt: skip
"""Ms of a target's decodes that are assumed where they could not be timed: a 135M model in Q4_K_M on two AVX-512 cores."""

CARD: Mapping[int, float] = {1: 1.0, 8: 1.74, 16: 4.1, 64: 5.0}
"""A draft's rows on a device, in units of one, as published of llama.cpp on CUDA (34B Q8_0); on a processor they are as ROWS."""

HEAD: Mapping[int, float] = {1: 1.0, 2: 2.2, 4: 3.6, 8: 4.9, 16: 8.0, 64: 24.0}
"""A draft that reads the target's states, in units of one of its own steps: from the drafts on the pages of the default target in
three types. The value for 64 rows is a prompt being read."""

LONG_LAG = 4  # tokens per sequence to catch up with, above which reading takes longer than a step
_FAR_DEPTH = 4096  # context depth of a prior's second curve; linear between and beyond
_HEAD_MORE = 0.03  # share of a target row that a head's step takes beyond its share of bytes


class CostCurve:
    """The time of target, draft and companion by number of rows.

    `draft.table()[n]` is one step of n sequences in lock-step, or n tokens of one sequence read at once.
    """

    def __init__(self, target: RowTimes, draft: RowTimes, companion: RowTimes) -> None:
        self.target, self.draft, self.companion = target, draft, companion
        self._first_reading: Outcome | None = None

    @classmethod
    def prior(
        cls,
        rows: Mapping[int, float] = ROWS,
        draft_share: float = 0.15,
        companion_share: float = 0.1,
        *,
        deeper: Mapping[int, float] | None = None,
        head: bool = False,
        card: bool = False,
    ) -> CostCurve:
        """The curve assumed before any round, with side models as shares of a target row.

        `rows`: ms of the target's decodes, by rows. `deeper` has the milliseconds that each position of context adds to one, by
        rows. `head`: the draft reads the target's states; its rows use few weights and many kernels. card: side models run on a
        device.
        """
        own = expand(rows)
        bases = {0: own}
        if deeper:
            more = expand(deeper)
            bases[_FAR_DEPTH] = [t + _FAR_DEPTH * m for t, m in zip(own, more)]
        # not in the target's proportions: a small model's rows are not as flat as those of a large one may be
        small = expand(CARD if card else ROWS)
        one = own[1] / small[1]
        draft = [one * draft_share * t for t in small]
        if head:
            draft = [own[1] * (draft_share + _HEAD_MORE) * t for t in expand(HEAD)]
        sides = (draft, [one * companion_share * t for t in small])
        return cls(RowTimes(bases), *(RowTimes({0: times}) for times in sides))

    def begin_with(self, target: Mapping[int, KeptTime], draft: Mapping[int, KeptTime]) -> None:
        """Start from times by rows that this machine took before, where there are any."""
        self.target.begin_with(target)
        self.draft.follow(self.target)
        self.companion.follow(self.target)
        self.draft.begin_with(draft)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round's times, or from the mean times of several."""
        n_seq = len(outcome.seqs)
        if outcome.verify_rows == outcome.own_rows:  # prompt rows have no logits and cost less
            self.target.observe(outcome.verify_rows, outcome.t_verify, outcome.depth)
            for side in (self.draft, self.companion):
                side.follow(self.target)
        if outcome.draft_steps > 0:
            self._observe_draft(outcome, n_seq)
            self.draft.pace = self.target.scale
        if outcome.companion_rows > 0:
            self.companion.observe(outcome.companion_rows, outcome.t_companion)
            self.companion.pace = self.target.scale

    def renew(self) -> None:
        """Treat all learned times as guesses."""
        for side in (self.target, self.draft, self.companion):
            side.renew()

    def _observe_draft(self, outcome: Outcome, n_seq: int) -> None:
        """Learn from the larger part: the first decode where the draft read many tokens to catch up, else the other steps.

        Both parts are taken to have been slower or faster than believed by one factor: what is left of a short time after the
        other part's belief is taken away may be next to nothing, and a draft that seemed free would be used everywhere.

        If the draft reads many tokens before the time of a step is known, that round is kept and learned from later.
        """
        steps, first = outcome.draft_steps, n_seq + max(0, outcome.caught_up)
        if outcome.caught_up > LONG_LAG * n_seq and not self.draft.count(n_seq):
            self._first_reading = outcome
            return
        reading, step = self.draft.time(first), self.draft.time(n_seq)
        factor = outcome.t_draft / (reading + (steps - 1) * step)
        if reading >= (steps - 1) * step:
            self.draft.observe(first, factor * reading)
        else:
            self.draft.observe(n_seq, factor * step)
        read = self._first_reading
        if read and len(read.seqs) == n_seq and self.draft.count(n_seq):
            self._first_reading = None
            self._observe_draft(read, n_seq)
