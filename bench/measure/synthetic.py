"""Synthetic answers with planted acceptance."""

from __future__ import annotations

import random
from math import exp, log

from pyspec.draft.types import LONGEST

from .simulate import Answer, Chain


def planted(
    rng: random.Random, acceptance: float, length: int, prompt: int, spread: float = 1.5, window: int = 0
) -> Answer:  # fmt: skip
    """An answer with planted acceptance.

    Position t is accepted with a chance q(t) whose mean is `acceptance`: logit q varies by `spread` (standard deviation) around a
    level, with correlation 0.5 to its predecessor. The draft's own probability predicts q with an error of 0.8 in logits; after a
    refusal it predicts nothing. Whether a position is accepted is drawn once. No companion runs, and nothing repeats.
    """
    level, z, follow, error = _level(acceptance, spread), rng.gauss(0.0, 1.0), 0.5, 0.8
    fresh = (1.0 - follow**2) ** 0.5
    says, off, ok = [], [], []
    for _ in range(length + LONGEST):
        z = follow * z + fresh * rng.gauss(0.0, 1.0)
        logit = level + spread * z
        ok.append(rng.random() < _sigmoid(logit))
        says.append(_sigmoid(1.1 * logit + 0.3 + rng.gauss(0.0, error)))
        off.append(_sigmoid(rng.gauss(level - 1.0, spread + error)))
        rng.gauss(0.0, 0.25)  # keeps the random sequence of earlier versions
    answer = Answer(length, prompt, {}, {}, window)
    for t in range(length):
        right = next((i for i in range(LONGEST) if not ok[t + i]), LONGEST)
        p = says[t : t + right + 1] + off[t + right + 1 : t + LONGEST]
        answer.models[t] = Chain(t, LONGEST, right, p=p[:LONGEST])
    return answer


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + exp(-z))


def _level(mean: float, spread: float) -> float:
    """The logit around which sigmoid(level + spread * N(0, 1)) has the wanted mean."""
    if spread == 0.0:
        return log(mean / (1.0 - mean))
    nodes = [(k / 8.0, exp(-((k / 8.0) ** 2) / 2.0)) for k in range(-32, 33)]
    total = sum(w for _, w in nodes)
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        got = sum(w * _sigmoid(middle + spread * x) for x, w in nodes) / total
        low, high = (middle, high) if got < mean else (low, middle)
    return low
