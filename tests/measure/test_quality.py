"""Figures of gates, and the verdict on the default."""

from __future__ import annotations

import pytest
from measure.making import record, turn

from pyspec.measure.quality import Gate, distinct_4, gates, longest_repeat, verdict
from pyspec.measure.questions import Question
from pyspec.measure.records import Record

QUESTIONS = [
    Question(q, "qa", ["a"], [{"kind": "json"}] if q < 9 else [None]) for q in range(1, 10)
]


def run(
    who: str, nats: float, checks: bool = True, tokens: list[int] | None = None
) -> list[Record]:
    """Nine answers alike but for the last, which has no check."""
    tokens = tokens or [1, 2, 3, 4, 5]
    return [
        record(
            who,
            q.question_id,
            turn(tokens, nats=[nats] * len(tokens), check=checks if q.check[0] else None),
        )
        for q in QUESTIONS
    ]


def judged(*records: list[Record]) -> dict[str, Gate]:
    """Gates by name."""
    found = gates([r for group in records for r in group], QUESTIONS)
    return {gate.who: gate for gate in found}


def test_distinct_and_repeat_of_known_texts() -> None:
    """By hand: 1 2 3 4 twice has five 4-grams, four of them different, and repeats four tokens."""
    assert distinct_4([1, 2, 3, 4, 1, 2, 3, 4]) == 4 / 5
    assert longest_repeat([1, 2, 3, 4, 1, 2, 3, 4]) == 4
    assert (distinct_4([1, 2, 3]), longest_repeat([1, 2, 3])) == (1.0, 0)


def test_a_gate_within_the_bounds_is_supported() -> None:
    """A hundredth of a nat more is allowed."""
    gate = judged(run("strict", 0.5), run("margin", 0.51))["margin"]
    assert gate.nats_over.mean == pytest.approx(0.01)
    assert gate.supported
    assert gate.checks == {"json": (8, 8)}


@pytest.mark.parametrize(
    "worse",
    [
        run("margin", 0.53),
        run("margin", 0.5, checks=False),
        run("margin", 0.5, tokens=[1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_gate_beyond_a_bound_is_not(worse: list[Record]) -> None:
    """Nats, checks and repetition, each alone."""
    assert not judged(run("strict", 0.5), worse)["margin"].supported


def test_checks_worse_by_chance_alone_do_not_count() -> None:
    """One failure of eight lies inside its interval."""
    own = run("margin", 0.5)
    own[0].turns[0].check = False
    gate = judged(run("strict", 0.5), own)["margin"]
    assert gate.checks == {"json": (7, 8)}
    assert gate.checks_over["json"].mean < 0
    assert gate.worse == []
    assert gate.supported


def test_verdict_names_the_fastest_supported_gate_and_the_default() -> None:
    """The default is judged by name, though another is faster."""
    fast = run("margin/gap=2.5", 0.5)
    for r in fast:
        r.turns[0].decode_s = 0.5
    said = verdict(
        list(judged(run("plain", 0.5), run("strict", 0.5), run("margin", 0.6), fast).values())
    )
    assert "margin/gap=2.5 (2.00 times plain)" in said
    assert "(margin, 1.00 times) is NOT within them" in said


def test_verdict_where_no_margin_holds() -> None:
    """Then strict is what the data support."""
    assert "strict" in verdict(list(judged(run("strict", 0.5), run("margin", 0.9)).values()))
