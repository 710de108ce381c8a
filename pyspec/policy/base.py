"""What every policy offers the round loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pyspec.policy.cost import CostCurve
from pyspec.policy.learned import Learned
from pyspec.policy.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.types import Draft, Outcome, Place, Plan

MAX_DRAFT = 16
_MS_MAX = 1e7


class LengthPolicy(ABC):
    """Decides draft lengths; one object lives as long as the process and learns across answers.

    Round: `plan`, draft, (companion), `choose`, verify, `observe`. Not thread-safe.
    """

    def __init__(self, curve: CostCurve | None = None, learned: Learned | None = None) -> None:
        self.curve = curve or CostCurve()
        self.learned = learned or Learned()
        self.tally = Tally()

    @abstractmethod
    def plan(self, places: Sequence[Place]) -> Plan:
        """What to draft for the sequences that stand at `places`, at least one."""

    @abstractmethod
    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """How many drafted tokens of each draft go to the target; in the order given."""

    @abstractmethod
    def observe(self, outcome: Outcome) -> None:
        """Learn from a verified round. Sequences not in `outcome` are forgotten."""

    def begin_answer(self) -> None:
        """Start the statistics anew; what was learned stays."""
        self.tally = Tally()

    def begin_sequence(self, seq: int) -> None:  # noqa: B027 - most have nothing to forget
        """Another text now goes on under this sequence number, in the midst of a batch."""

    def stats(self) -> dict[str, Any]:
        """Statistics since `begin_answer`, for a result's `speculation` block."""
        target = self.curve.target.table()
        verify = target[1 : MAX_DRAFT + 2]
        step = self.curve.draft.table()[1]
        return self.tally.report(verify, step, self.learned.calibration.by_position())


def _sane(ms: float) -> float:
    return ms if 0.0 <= ms < _MS_MAX else 0.0


def clean_times(outcome: Outcome) -> None:
    """Make times that cannot be, NaN included, 0: not measured."""
    outcome.t_verify = _sane(outcome.t_verify)
    outcome.t_draft = _sane(outcome.t_draft)
    outcome.t_companion = _sane(outcome.t_companion)
    outcome.t_round = _sane(outcome.t_round)


def observe_times(curve: CostCurve, outcome: Outcome, n_seq: int) -> None:
    """Feed the times of a round to the cost curve; `outcome` went through `clean_times`."""
    own_rows = n_seq + sum(seen.n_verified for seen in outcome.seqs)
    # prompt rows in the same batch have no logits and cost less
    if outcome.verify_rows == own_rows:
        curve.observe_target(outcome.verify_rows, outcome.t_verify, outcome.depth)
    if outcome.draft_steps > 0 and outcome.draft_rows <= n_seq * outcome.draft_steps:
        curve.draft.observe(n_seq, outcome.t_draft / outcome.draft_steps)
    if outcome.companion_rows > 0:
        curve.companion.observe(outcome.companion_rows, outcome.t_companion)
