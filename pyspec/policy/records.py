"""What the round loop and a policy tell each other.

Times are wall milliseconds. A round is: plan, draft, (companion), choose, verify, observe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "model"
LOOKUP = "lookup"

TABLE_BINS = 32
"""Bins of the calibration table: equal in logit(p), which is clamped to [-8, 8]."""


class Plan(msgspec.Struct, frozen=True):
    """What to draft this round.

    `max_draft` 0 means: do not run the draft model. While drafting, survival is the product of
    `table[bin(p)]` over the drafted tokens; after token i (0-based) drafting goes on only if
    survival >= `floors[i]`. `floor` is the smallest of `floors`, for a loop that keeps one number.
    `table` None switches the survival test off. A lookup whose match is shorter than
    `lookup_min` should yield to the draft model. `probe` marks a round drafted for information.
    """

    max_draft: int
    floor: float = 0.0
    table: Sequence[float] | None = None
    floors: Sequence[float] = ()
    use_companion: bool = False
    probe: bool = False
    lookup_min: int = 1


class Draft(msgspec.Struct):
    """The drafted tokens of one sequence, with what the models said about each.

    `p` and `entropy` (nats) come from the draft's full softmax; `s`, `a`, `pc`, `agree` from the
    companion, all None where it did not run. Lookup drafts have neither and carry `match_length`
    and `choices`, the number of different tokens that followed the match.
    """

    seq: int
    n: int
    p: Sequence[float] = ()
    entropy: Sequence[float] = ()
    s: Sequence[float] | None = None
    a: Sequence[float] | None = None
    pc: Sequence[float] | None = None
    agree: Sequence[bool] | None = None
    source: str = MODEL
    match_length: int = 0
    choices: int = 1


class SeqOutcome(msgspec.Struct):
    """What verification did with one sequence's draft.

    `next_match` costs nothing to know and teaches the most when little was verified: where every
    verified token was accepted and the draft went on, it says whether the target's own token
    would have accepted the first token left out. None where there is no such token.
    """

    seq: int
    n_verified: int
    n_accepted: int
    n_relaxed: int = 0
    next_match: bool | None = None


class Outcome(msgspec.Struct):
    """One finished round. `t_round` is the whole of it, Python included; 0 when not measured.

    `caught_up` marks a round whose `t_draft` includes tokens the draft had missed while it was
    off: such a time says nothing about one step.
    """

    seqs: Sequence[SeqOutcome]
    t_verify: float
    verify_rows: int
    t_draft: float = 0.0
    draft_steps: int = 0
    t_companion: float = 0.0
    companion_rows: int = 0
    t_round: float = 0.0
    caught_up: bool = False
    depth: int = 0
