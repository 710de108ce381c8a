"""Synthetic rounds with planted acceptance, in the format of pyspec.measure.rounds."""

from __future__ import annotations

import random
from math import exp, log
from typing import TYPE_CHECKING

import msgspec

from pyspec.measure.rounds import Chain
from pyspec.policy.types import LOOKUP

if TYPE_CHECKING:
    from collections.abc import Iterator

CATEGORIES = {
    # acceptance in a hard and an easy stretch, mean lengths of both, share of copied text
    "writing": (0.30, 0.60, 30, 4, 0.00),
    "qa": (0.38, 0.75, 24, 6, 0.02),
    "math": (0.50, 0.85, 14, 10, 0.05),
    "code": (0.55, 0.93, 10, 16, 0.10),
    "summary": (0.42, 0.85, 16, 10, 0.25),
    "copying": (0.60, 0.97, 6, 30, 0.60),
}


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + exp(-max(-20.0, min(20.0, z))))


def _logit(p: float) -> float:
    return log(p / (1.0 - p))


class _Token(msgspec.Struct):
    """One drafted token: what the models say and whether the target agrees."""

    ok: bool
    p: float
    h: float
    s: float
    a: float
    pc: float
    agree: bool


def _token(rng: random.Random, q: float, drafted: float) -> _Token:
    """A token with planted acceptance q; the draft's view has noise, the companion's its own."""
    ok = rng.random() < q
    z = _logit(min(max(q, 0.005), 0.995))
    p = _sigmoid(1.1 * z + 0.3 + rng.gauss(0.0, drafted))
    pc = _sigmoid(1.0 * z + rng.gauss(0.0, 1.0) + (0.7 if ok else -0.7))
    h = max(0.0, 3.2 * (1.0 - p) + rng.gauss(0.0, 0.25))
    s = min(1.0, max(0.0, 1.0 - 0.8 * abs(p - pc) - abs(rng.gauss(0.0, 0.12))))
    return _Token(ok, p, h, s, min(1.0, pc / p), pc, pc > 0.45)


def synthetic_answer(
    rng: random.Random, name: int, category: str, length: int = 128, kmax: int = 16
) -> Iterator[Chain]:
    """Chains of one answer with planted acceptance.

    A two-state walk (hard, easy stretches) sets each position's acceptance around the state's
    mean; whether the draft is right at a position, given the right text before it, is drawn once,
    so chains from different positions agree. After a mismatch the draft talks to itself.
    """
    hard, easy, hard_len, easy_len, copied = CATEGORIES[category]
    state, on_path, copying = 0, [], []
    left = 0
    for _ in range(length + kmax):
        if rng.random() < 1.0 / (easy_len if state else hard_len):
            state = 1 - state
        mean = easy if state else hard
        q = _sigmoid(_logit(mean) + rng.gauss(0.0, 1.6))
        on_path.append(_token(rng, q, 0.8))
        if left == 0 and rng.random() < copied / 20.0:
            left = int(rng.expovariate(1.0 / 20.0)) + 3
        copying.append(left > 0)
        left = max(0, left - 1)
    for t in range(length):
        chain: list[_Token] = []
        alive = True
        for i in range(kmax):
            token = on_path[t + i] if alive else _token(rng, 0.3 + 0.4 * rng.random(), 0.8)
            alive = alive and token.ok
            chain.append(msgspec.structs.replace(token, ok=alive))
        yield Chain(
            name,
            category,
            t,
            length,
            [int(x.ok) for x in chain],
            p=[round(x.p, 5) for x in chain],
            h=[round(x.h, 4) for x in chain],
            s=[round(x.s, 4) for x in chain],
            a=[round(x.a, 4) for x in chain],
            pc=[round(x.pc, 5) for x in chain],
            agree=[int(x.agree) for x in chain],
        )
        yield from _lookup(rng, name, category, t, length, kmax, copying)


def _lookup(
    rng: random.Random,
    name: int,
    category: str,
    t: int,
    length: int,
    kmax: int,
    copying: list[bool],
) -> Iterator[Chain]:
    """A lookup chain: long matches inside copied text, now and then a spurious short one."""
    before = 0
    while before < t and before < 12 and copying[t - 1 - before]:
        before += 1
    run = 0
    while t + run < len(copying) and run < kmax and copying[t + run]:
        run += 1
    match = before if before >= 2 else (rng.randint(1, 3) if rng.random() < 0.2 else 0)
    if not match:
        return
    good = run if before >= 2 else (1 if rng.random() < 0.25 else 0)
    n = min(kmax, 10)
    ok = [int(i < good) for i in range(n)]
    yield Chain(name, category, t, length, ok, source=LOOKUP, match_length=match)


def synthetic(seed: int, answers: int = 8, length: int = 128, kmax: int = 16) -> Iterator[Chain]:
    """`answers` answers in each category, categories in turn."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    for k in range(answers):
        for j, category in enumerate(CATEGORIES):
            yield from synthetic_answer(rng, k * len(CATEGORIES) + j, category, length, kmax)
