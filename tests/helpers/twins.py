"""Slow twins of the C kernels: numpy in double precision, written from the definitions and from nothing else."""

import math
from dataclasses import dataclass

import numpy as np

REJECTED, EXACT, RELAXED = 0, 1, 2


@dataclass
class Row:
    """What ps_scan says of a row."""

    first: int
    second: int
    z1: float
    z2: float
    lse: float


def scan(row: np.ndarray) -> Row:
    """Top-2, the lowest id first among equals; log-sum-exp."""
    x = row.astype(np.float64)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    first, second = order[0], order[1] if len(x) > 1 else -1
    log_p = log_softmax(row)
    z2 = x[second] if second >= 0 else -math.inf
    return Row(first, second, x[first], z2, float(x[first] - log_p[first]))


def log_softmax(row: np.ndarray) -> np.ndarray:
    x = row.astype(np.float64)
    d = x - x.max()
    return d - math.log(float(np.exp(d).sum()))


def agreement(
    draft: np.ndarray, companion: np.ndarray, drafted: int
) -> tuple[float, float, float, float, int]:
    """(S, A, Pd(d), Pc(d), companion's argmax)."""
    log_d, log_c = log_softmax(draft), log_softmax(companion)
    s = float(np.minimum(np.exp(log_d), np.exp(log_c)).sum())
    possible = log_c[drafted] > -math.inf
    a = math.exp(min(0.0, log_c[drafted] - log_d[drafted])) if possible else 0.0
    return s, a, math.exp(log_d[drafted]), math.exp(log_c[drafted]), int(np.argmax(companion))


@dataclass
class Gate:
    """The margin gate's parameters, and its state."""

    theta: float
    gap: float = math.inf
    budget: float = math.inf
    sampled: bool = False
    confirm: int = 0
    spent: float = 0.0  # a float32 once it has moved


def decide(
    gate: Gate | None, row: Row, chosen: int, drafted: int, barred: bool, gap: float | None = None,
    missing: float = 0.0, behind: int = 0,
) -> tuple[int, float]:  # fmt: skip
    """The acceptance rule, one condition after the other; moves the gate's state."""
    if gate is None:
        return (EXACT if drafted == chosen else REJECTED), 0.0
    if drafted == chosen:
        return EXACT, 0.0
    z1, z2 = np.float32(row.z1), np.float32(row.z2)
    allowed = {row.second, row.first} if gate.sampled else {row.second}
    if barred or drafted not in allowed or drafted < 0:
        return REJECTED, 0.0
    with np.errstate(all="ignore"):
        apart = z1 - z2 if gap is None else np.float32(gap)
    nats = np.float32(0) if drafted == row.first else apart
    charge = nats + np.float32(missing if gate.sampled else 0.0)
    with np.errstate(all="ignore"):
        conditions = (
            gate.theta < 1,
            gate.budget > 0,
            apart < np.inf,
            z1 > 0,
            z2 / z1 > np.float32(gate.theta),
            apart <= np.float32(gate.gap),
            np.float32(gate.spent) + charge <= np.float32(gate.budget),
            behind >= gate.confirm,
        )
    if not all(conditions):
        return REJECTED, 0.0
    gate.spent = np.float32(gate.spent) + charge
    return RELAXED, float(nats)


_GOLDEN, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1


def _mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def noise_hash(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """32 bits of (seed, position, id) for each id."""
    key = _mix((_mix((seed + _GOLDEN) & _WORD) + _GOLDEN * (position + 1)) & _WORD)
    x = np.asarray(ids).astype(np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> 17)) * np.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11)) + np.uint32(key >> 32)
    x = x * np.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * np.uint32(0x31848BAB)
    return x ^ (x >> 14)


def noise(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise."""
    return -np.log(-np.log((noise_hash(seed, position, ids) + 0.5) / 2**32))


def draw(
    row: np.ndarray, temperature: float, min_p: float, seed: int, position: int
) -> tuple[int, int, float, float]:
    """The two best ids of logit / T + G over ids of at least min_p times the first's probability; scores in logits."""
    t = float(np.float32(temperature))
    left = np.flatnonzero(row > -np.inf)
    if min_p > 0:
        floor = row.max() + np.log(np.float32(min_p))
        left = left[row[left] >= floor]
    scores = row[left].astype(np.float64) / t + noise(seed, position, left)
    order = np.lexsort((left, -scores))
    two = [(int(left[i]), t * scores[i]) for i in order[:2]] + [(-1, -math.inf)] * 2
    return two[0][0], two[1][0], two[0][1], two[1][1]
