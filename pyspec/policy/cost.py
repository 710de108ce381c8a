"""What a round's decodes cost: the times of target, draft and companion, learned from rounds or loaded from a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspec.policy.row_times import RowTimes
from pyspec.policy.shapes import DEFAULT_SHAPE, SHAPES, Experts, expand, with_experts
from pyspec.policy.types import Outcome

LONG_LAG = 4  # tokens per sequence to catch up with, above which reading takes longer than a step
_FAR_DEPTH = 4096  # context depth of a prior's second curve; linear between and beyond
_HEAD_MORE = 0.03  # share of a target row that a head's step takes beyond its share of bytes


class CostCurve:
    """The time of target, draft and companion by number of rows.

    `draft.table()[n]` is one step of n sequences in lock-step, or n tokens of one sequence read at once.
    """

    def __init__(self, target: RowTimes, draft: RowTimes, companion: RowTimes) -> None:
        self.target, self.draft, self.companion = target, draft, companion
        draft.hope = companion.hope = 1.0  # no optimism: reading costs time before it pays
        self._first_reading: Outcome | None = None

    @classmethod
    def prior(
        cls,
        shape_name: str = DEFAULT_SHAPE,
        one_row_ms: float = 10.0,
        draft_share: float = 0.15,
        companion_share: float = 0.1,
        *,
        deeper: Mapping[int, float] | None = None,
        head: bool = False,
        experts: Experts | None = None,
    ) -> CostCurve:
        """The curve assumed without a profile: a shape in units of `one_row_ms`, with side models as shares of a target row.

        `deeper` has the milliseconds that each position of context adds to a decode of the target, by rows.
        `head`: the draft reads the target's states; its rows use few weights and many kernels. experts: the target's, if it is a
        mixture.
        """
        shape = [one_row_ms * t for t in expand(SHAPES.get(shape_name, SHAPES[DEFAULT_SHAPE]))]
        own = with_experts(shape, experts) if experts else shape
        bases = {0: own}
        if deeper:
            more = expand(deeper)
            bases[_FAR_DEPTH] = [t + _FAR_DEPTH * m for t, m in zip(own, more)]
        draft = [draft_share * t for t in shape]
        if head:
            one = one_row_ms * (draft_share + _HEAD_MORE)
            draft = [one * t for t in expand(SHAPES["head"])]
        sides = (draft, [companion_share * t for t in shape])
        target = RowTimes(bases)
        if experts:
            target.hope = (
                1.0  # where every row costs, a trial of several takes what it cannot bring back
            )
        return cls(target, *(RowTimes({0: times}) for times in sides))

    @classmethod
    def from_tables(
        cls,
        target: Mapping[int, Sequence[float]],
        draft: Sequence[float],
        companion: Sequence[float],
    ) -> CostCurve:
        """A measured curve: target times by depth, then draft and companion; index 0 is 0 rows."""
        return cls(
            *(RowTimes(bases, measured=True) for bases in (target, {0: draft}, {0: companion}))
        )

    def begin_with(self, target: Mapping[int, float], draft: Mapping[int, float]) -> None:
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
        if reading >= (steps - 1) * step and first > n_seq:
            self.draft.observe(first, factor * reading)
        else:
            self.draft.observe(n_seq, factor * step)
        read = self._first_reading
        if read and len(read.seqs) == n_seq and self.draft.count(n_seq):
            self._first_reading = None
            self._observe_draft(read, n_seq)
