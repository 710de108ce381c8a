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


class Place(msgspec.Struct):
    """Where one sequence stands before a round.

    `room` is the longest draft that can still be verified, `left` the most tokens the text may still
    get. `lag` counts committed tokens that the draft model would have to read before its next draft,
    an unread prompt included. `depth` is the length of the text, in tokens.
    """

    seq: int
    room: int
    lag: int = 0
    left: int = 1 << 30
    depth: int = 0


class Plan(msgspec.Struct, frozen=True):
    """What to draft this round.

    `lengths` has the longest model draft for each place; 0 means: do not run the draft model there.
    While drafting, survival is the product of `table[bin(p)]` over the drafted tokens; after token i
    (0-based) drafting goes on only if survival >= `floors[i]`; the last floor holds for the rest.
    `table` None switches the survival test off. A lookup whose match is shorter than `lookup_min`
    should yield to the draft model.
    """

    lengths: Sequence[int]
    table: Sequence[float] | None = None
    floors: Sequence[float] = (0.0,)
    use_companion: bool = False
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

    `draft_steps` are the draft model's decodes one after the other, `draft_rows` the rows in them:
    more than the drafted tokens where the draft had to catch up first.
    """

    seqs: Sequence[SeqOutcome]
    t_verify: float
    verify_rows: int
    t_draft: float = 0.0
    draft_steps: int = 0
    t_companion: float = 0.0
    companion_rows: int = 0
    t_round: float = 0.0
    draft_rows: int = 0
    depth: int = 0
