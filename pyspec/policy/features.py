"""What an acceptance estimate may look at, for one drafted token."""

from __future__ import annotations

from math import log
from typing import NamedTuple

from pyspec.errors import NumericError
from pyspec.policy.types import TABLE_BINS, Draft

LOGIT_MAX = 8.0
_P_MIN = 1.0 / (1.0 + 2980.9579870417283)  # logit -8
_P_MAX = 1.0 - _P_MIN
_POSITION = tuple(min(i, 8) / 8.0 for i in range(1025))

DRAFT_WIDTH = 6
COMPANION_WIDTH = 10


class Features(NamedTuple):
    """One drafted token: `x` for the logistic model (first entry 1), `u`, `v` in [0, 1] for bins.

    The draft alone: x = 1, logit p / 4, entropy / 3, position / 8, recent acceptance in this
    sequence, mean logit p / 4 of the draft's tokens before; u from logit p, v from entropy.
    With a companion x goes on with S, A, logit Pc / 4, argmax agreement; and u = S, v = A.
    """

    x: tuple[float, ...]
    u: float
    v: float


def logit(p: float) -> float:
    """log(p / (1 - p)), clamped to [-8, 8]."""
    if p <= _P_MIN:
        return -LOGIT_MAX
    if p >= _P_MAX:
        return LOGIT_MAX
    return log(p / (1.0 - p))


def table_bin(p: float) -> int:
    """The bin of a draft probability in the calibration table that C uses."""
    index = int((logit(p) + LOGIT_MAX) * (TABLE_BINS / (2.0 * LOGIT_MAX)))
    return min(index, TABLE_BINS - 1)


def bin_centre(index: int) -> float:
    """The logit at the middle of a bin of the calibration table."""
    return (index + 0.5) * (2.0 * LOGIT_MAX / TABLE_BINS) - LOGIT_MAX


def draft_features(
    position: int, p: float, entropy: float, recent: float = 0.5, before: float = 0.0
) -> Features:
    """Features of the draft alone. Raises NumericError where p or entropy is no number."""
    if not (0.0 <= p <= 1.0 and entropy >= 0.0):
        raise NumericError("the draft's probability or entropy is not a number in its range")
    lp = logit(p)
    h = min(entropy, 6.0)
    x = (1.0, lp * 0.25, h * (1.0 / 3.0), _POSITION[position], recent, before)
    return Features(x, (lp + LOGIT_MAX) * (1.0 / (2.0 * LOGIT_MAX)), h / (0.5 + h))


def companion_features(base: Features, s: float, a: float, pc: float, agree: bool) -> Features:
    """`base` extended by the companion. Raises NumericError where a value leaves [0, 1]."""
    if not (0.0 <= s <= 1.0001 and 0.0 <= a <= 1.0001 and 0.0 <= pc <= 1.0001):
        raise NumericError("the companion's S, A or probability is not a number in [0, 1]")
    x = (*base.x, s, a, logit(pc) * 0.25, 1.0 if agree else 0.0)
    return Features(x, min(s, 1.0), min(a, 1.0))


def read_draft(draft: Draft, recent: float = 0.5) -> list[Features]:
    """Features of a draft up to its first nonsensical value; never raises on numbers."""
    out: list[Features] = []
    total = 0.0
    try:
        for i in range(min(draft.n, len(draft.p), len(draft.entropy), 1024)):
            before = total / i if i else 0.0
            f = draft_features(i, draft.p[i], draft.entropy[i], recent, before)
            total += f.x[1]
            out.append(f)
    except NumericError:
        pass
    return out


def read_companion(draft: Draft, base: list[Features]) -> list[Features] | None:
    """`base` with the companion's features, or None where it did not run or returned nonsense."""
    s, a, pc, agree = draft.s, draft.a, draft.pc, draft.agree
    if s is None or a is None or pc is None or agree is None:
        return None
    if min(len(s), len(a), len(pc), len(agree)) < len(base):
        return None
    try:
        return [companion_features(f, s[i], a[i], pc[i], agree[i]) for i, f in enumerate(base)]
    except NumericError:
        return None
