"""What a round's decodes cost: the times of target, draft and companion, learned from rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspec.draft.row_times import KeptTime, RowTimes, expand
from pyspec.draft.types import Outcome

SHAPES: Mapping[str, Mapping[int, float]] = {
    # In units of one row. CPU: measured on two AVX-512 cores with a 135M model, flash attention on, 64 positions of context
    # (Q4_0, Q8_0: off, another machine). GPU: published measurements of llama.cpp (34B Q8_0 on CUDA, op level on Metal).
    "Q4_1": {1: 1, 2: 1.78, 3: 2.17, 4: 2.65, 5: 3.30, 6: 3.77, 8: 4.25, 12: 6.17, 16: 7.75},
    "Q4_0": {1: 1, 2: 1.53, 3: 1.95, 4: 2.24, 5: 2.92, 6: 3.35, 8: 3.60, 12: 4.99, 16: 5.11},
    "Q8_0": {1: 1, 2: 2.02, 3: 2.46, 4: 2.68, 5: 3.28, 6: 3.60, 8: 3.88, 12: 5.41, 16: 6.53},
    "Q4_K_M": {1: 1, 2: 1.44, 3: 1.68, 4: 1.96, 5: 2.63, 6: 2.85, 8: 3.04, 12: 4.00, 16: 4.94},
    "BF16": {1: 1, 2: 1.68, 3: 1.89, 4: 2.12, 5: 2.21, 6: 2.32, 8: 2.61, 12: 3.12, 16: 3.67},
    "cuda": {1: 1, 8: 1.74, 9: 3.89, 16: 4.1, 64: 5.0},
    # A draft that reads the target's states, in units of one of its own steps: from the drafts on the pages of the default target
    # in three types. The value for 64 rows is a prompt being read.
    "head": {1: 1, 2: 2.2, 4: 3.6, 8: 4.9, 16: 8.0, 64: 24.0},
    "metal": {1: 1, 2: 1.3, 4: 1.7, 8: 2.5, 9: 3.2, 16: 3.8, 64: 8.0},
}
DEFAULT_SHAPE = "Q4_K_M"


class Experts(NamedTuple):
    """A mixture of experts. held: by a layer; used: by a row; share: of the bytes that a row reads."""

    held: int
    used: int
    share: float


def with_experts(times: Sequence[float], experts: Experts) -> list[float]:
    """A curve of a mixture from that of a model whose rows share all weights.

    Rows choose experts as if independently, and each chosen one is read: on a model of 64 experts, 8 of them used, this is within
    16 % of what 3 to 8 rows were measured to take.
    """
    held, used, share = experts
    read = [times[1] * held / used * (1.0 - (1.0 - used / held) ** n) for n in range(len(times))]
    return [t + share * max(0.0, more - t) for t, more in zip(times, read)]


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
        """The curve assumed before any round: a shape in units of `one_row_ms`, with side models as shares of a target row.

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
            # where every row costs, a trial of several takes what it cannot bring back
            target.hope = 1.0
        return cls(target, *(RowTimes({0: times}) for times in sides))

    def begin_with(self, target: Mapping[int, KeptTime], draft: Mapping[int, KeptTime]) -> None:
        """Start from times by rows that this machine took before, where there are any."""
        self.target.begin_with(target)
        self.draft.follow(self.target)
        self.companion.follow(self.target)
        self.draft.begin_with(draft)

    def observe(self, outcome: Outcome, rounds: int = 1) -> None:
        """Learn from a round's times, or from the mean times of several."""
        n_seq = len(outcome.seqs)
        if outcome.verify_rows == outcome.own_rows:  # prompt rows have no logits and cost less
            self.target.observe(outcome.verify_rows, outcome.t_verify, outcome.depth, rounds)
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
