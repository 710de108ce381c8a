"""What recorded rounds of a pair teach, and recording within its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measure.pair import by_position, learned_from, record
from measure.questions import Question
from measure.simulate import Answer, Chain

from pyspec.policy.stopping import forecast


def chain(t: int, n: int, matched: int, p: float = 0.9) -> Chain:
    """A model chain whose draft always says `p`."""
    return Chain(t, n, matched, p=[p] * n)


def answer(*chains: Chain) -> list[Answer]:
    """One answer of 40 tokens with these chains of its draft."""
    return [Answer(40, 64, {chain.t: chain for chain in chains}, {})]


def test_acceptance_counts_only_what_was_observed() -> None:
    """A refused token hides those behind it."""
    assert by_position(answer(chain(1, 3, 3), chain(2, 3, 1), chain(3, 2, 0)), 4) == [
        2 / 3,
        0.5,
        1.0,
    ]


@pytest.mark.parametrize(("matched", "likely"), [(4, True), (0, False)])
def test_recorded_rounds_teach_acceptance(matched: int, likely: bool) -> None:
    """A draft that is always right is trusted more than one that never is."""
    taught = learned_from(answer(*(chain(t, 4, matched) for t in range(1, 40))))
    assert (forecast(taught, chain(0, 4, 0).draft(4)).without[0] > 0.5) is likely


def test_a_pair_is_recorded_until_its_time_is_up(
    open_llama: Callable[..., Any], tiny_ascii: Path
) -> None:
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    questions = [Question(i, "c", ["abcabc"]) for i in range(3)]
    answers = record(llm, questions, kmax=3, max_tokens=12)
    assert [each.length for each in answers] == [12] * 3
    assert by_position(answers, 3)
    assert record(llm, questions, budget_s=-1.0) == []
