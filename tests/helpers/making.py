"""Records and texts made by hand, for tests of what is computed from them."""

import random
from typing import Any

from measure.records import ModelFile, RunRecord, Setup, TimedAnswer
from measure.simulate import Answer, Costs, Times, planted

SETUP = Setup(
    pyspec="0", llama_cpp_python="0", python="3", system="Linux x", machine="a machine", gpu_layers=0, threads=1,
    n_ctx=64, max_tokens=8, temperature=0.0, seed=1, files={"target": ModelFile("t.gguf", "ab", 3)},
    questions="2 questions", day="2026-01-01",
)  # fmt: skip


def turn(tokens: list[int], seconds: float = 1.0, **more: Any) -> TimedAnswer:
    return TimedAnswer(4, tokens, "length", 0.1, seconds, seconds + 0.1, **more)


def record(
    who: str, question: int = 1, *turns: TimedAnswer, category: str = "qa", repeat: int = 0, **more: Any,
) -> RunRecord:  # fmt: skip
    return RunRecord(who, question, category, repeat, list(turns), SETUP, **more)


FLAT = Costs(Times({1: 10.0, 16: 10.0}), Times({1: 1.0, 16: 1.0}), Times({1: 1.0}))


def synthetic(acceptance: float, length: int = 60, n: int = 1, **kind: float) -> list[Answer]:
    rng = random.Random(3)  # noqa: S311 - reproducible, not secret
    return [planted(rng, acceptance, length, 10, **kind) for _ in range(n)]
