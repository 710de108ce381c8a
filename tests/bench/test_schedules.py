"""Schedules of a server, played on what decodes take."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

PROMPTS = [33, 600, 44, 190, 20, 749] * 4
COSTS = {"tokens": 12, "base": 7.0, "answer": 1.5, "reading": 9.0, "row": 1.0}


@pytest.fixture
def schedules(script):
    return script("schedules")


@pytest.fixture(params=["prompts first", "ours"])
def played(request, schedules):
    """The load of four clients when all is done."""
    load = schedules.Load(PROMPTS, Namespace(**COSTS), 4)
    if request.param == "ours":
        schedules.composed(load, 8.0)
    else:
        schedules.prompts_first(load)
    return load


def test_everyone_gets_what_they_asked_for(played):
    """Each prompt is read to its end, and each answer has its tokens."""
    assert sorted(request.prompt for request in played.ended) == sorted(PROMPTS)
    assert {(request.tokens, request.missing) for request in played.ended} == {(12, 0)}
    assert all(
        request.sent < request.first <= request.last <= played.now for request in played.ended
    )


def test_no_schedule_beats_the_bound(played, schedules):
    """Which counts the work alone."""
    rate = 1e3 * 12 * len(PROMPTS) / played.now
    assert rate <= schedules.bound(played, PROMPTS, 12)


def test_a_decode_is_a_pass_of_answers_and_passes_of_prompts(schedules):
    """By hand; none of either costs nothing."""
    costs = schedules.Costs(7.0, 1.5, 9.0, 1.0)
    assert costs.decode(2, 0) == 10.0
    assert costs.decode(0, 513) == 2 * 9.0 + 513.0
    assert costs.decode(4, 100) == 13.0 + 109.0


def test_a_gap_is_the_longest_wait_within_an_answer(schedules):
    request = schedules.Request(10, 0.0, 9)
    for now in (50.0, 60.0, 90.0, 95.0):
        request.emit(now)
    assert (request.first, request.gap, request.tokens) == (50.0, 30.0, 4)


def test_the_page_has_a_row_for_each_schedule(schedules, tiny_ascii: Path, questions, tmp_path):
    options = [
        "--clients",
        "2",
        "--requests",
        "6",
        "--gap",
        "100,250",
        "--out",
        str(tmp_path / "out"),
    ]
    schedules.main([str(tiny_ascii), str(questions), *options])
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name in ("prompts first", "ours, 100 ms", "ours, 250 ms", "bound"):
        assert f"| 2 | {name} |" in page
