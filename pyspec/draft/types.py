"""What the round loop and a policy exchange.

Times are wall milliseconds. A round is: plan, draft, (score), choose, verify, observe.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MODEL = "model"
LOOKUP = "lookup"

LONGEST = 16
"""Most tokens that a model drafts in a round, unless a fixed length asks for more."""

MEMORY = 256.0
"""Observations that a learned mean looks back on: in thousands of rounds, sixty others are chance."""

TABLE_BINS = 32
"""Bins of the acceptance table that C multiplies up: equal in logit(p), which is clamped to [-8, 8]."""

LOGIT_MAX = 8.0
_P_MIN = 1.0 / (1.0 + 2980.9579870417283)  # logit -8
_P_MAX = 1.0 - _P_MIN
_P_LOW, _P_HIGH = 0.002, 0.998


def logit(p: float) -> float:
    """log(p / (1 - p)), clamped to [-8, 8]."""
    if p <= _P_MIN:
        return -LOGIT_MAX
    if p >= _P_MAX:
        return LOGIT_MAX
    return log(p / (1.0 - p))


def clamp(p: float) -> float:
    """Keep an estimate away from 0 and 1, which would make log-losses and survivals extreme."""
    return min(max(p, _P_LOW), _P_HIGH)


def table_bin(p: float) -> int:
    """The bin of a draft probability, computed as in C."""
    index = int((logit(p) + LOGIT_MAX) * (TABLE_BINS / (2.0 * LOGIT_MAX)))
    return min(index, TABLE_BINS - 1)


def bin_centre(index: int) -> float:
    """The logit at the middle of a bin."""
    return (index + 0.5) * (2.0 * LOGIT_MAX / TABLE_BINS) - LOGIT_MAX


class Place(msgspec.Struct):
    """Where one sequence stands before a round."""

    seq: int
    room: int  # tokens of the longest draft that can still be verified
    lag: int = 0  # committed tokens that the draft model has to read first, a prompt included
    left: int = 1 << 30  # most tokens that the sequence may still get
    depth: int = 0  # its length in tokens
    companion_lag: int = 0  # the same as `lag` for the companion
    longest: int = LONGEST  # most tokens that the draft model can propose; 0 for none


class Plan(msgspec.Struct, frozen=True):
    """What to draft this round.

    While drafting, survival is the product of `table[bin(p)]` over the drafted tokens. After token i (0-based) drafting goes on
    only if survival >= `floors[i]`; the last floor holds for the rest.
    """

    lengths: Sequence[int]  # the longest draft of the model for each place; 0: it does not run
    table: Sequence[float] | None = None  # acceptance by bin; None: no survival test
    floors: Sequence[float] = (0.0,)
    use_companion: bool = False


class Draft(msgspec.Struct):
    """The drafted tokens of one sequence, with what the models said about each.

    `s`, `a`, `pc`, `agree` come from the companion and are empty where it did not run.
    """

    seq: int
    n: int
    p: Sequence[float] = ()  # the model's certainty of each token (`ps_draft_run`); lookup has none
    s: Sequence[float] = ()
    a: Sequence[float] = ()
    pc: Sequence[float] = ()
    agree: Sequence[bool] = ()
    source: str = MODEL
    match_length: int = 0  # of a lookup draft


class SeqOutcome(msgspec.Struct):
    """What verification did with one sequence's draft.

    Where every verified token was accepted and the draft was longer, `next_match` says whether the rule in force would have
    accepted the first token left out. It costs nothing and teaches the most when little was verified.
    """

    seq: int
    n_verified: int
    n_accepted: int
    next_match: bool | None = None  # None: there is no such token

    def hits(self, n_drafted: int) -> list[bool]:
        """Whether each drafted token was right, as far as is known: up to the first refusal."""
        out = [True] * self.n_accepted
        if self.n_accepted < self.n_verified:
            out.append(False)
        elif self.next_match is not None:
            out.append(self.next_match)
        return out[:n_drafted]


class Outcome(msgspec.Struct):
    """One finished round."""

    seqs: Sequence[SeqOutcome]
    t_verify: float
    verify_rows: int
    t_draft: float = 0.0
    draft_steps: int = 0  # the draft model's decodes, one after the other; tokens kept from the last round need none
    t_companion: float = 0.0
    companion_rows: int = 0  # all rows that the companion decoded
    t_round: float = 0.0  # the whole time, Python included; 0 when not measured
    caught_up: int = 0  # rows in `draft_steps` beyond one per drafted token, which the draft model had to read first
    depth: int = 0
    companion_read: int = 0  # of `companion_rows` those that it had to read first

    @property
    def aside(self) -> float:
        """Milliseconds outside decodes; 0 where the round was not measured."""
        return max(0.0, self.t_round - self.t_verify - self.t_draft - self.t_companion)

    @property
    def own_rows(self) -> int:
        """Rows with logits: fewer than `verify_rows` where prompt tokens of other sequences shared the batch."""
        return len(self.seqs) + sum([seq.n_verified for seq in self.seqs])
