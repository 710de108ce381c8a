"""Answers that must be equal: where they part, and what is forgiven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from measure.making import record, turn

from pyspec.errors import UnequalOutputs
from pyspec.llama import SpeculativeLlama
from pyspec.measure.bench import TIE, demand_equal, differences, equality, tie_bound, top_gap
from pyspec.measure.costs import nats_of, rows_after
from pyspec.measure.records import Difference
from pyspec.measure.tasks import Question
from pyspec.sampling import Sampling


def parted(*tokens: list[int], who: str = "strict", **more: Any) -> list[Difference]:
    """Differences of an answer from plain's 1 2 3 / 4 5."""
    plain = record("plain", 1, turn([1, 2, 3]), turn([4, 5]), exact=True)
    other = record(who, 1, *(turn(t) for t in tokens), **{"exact": True, **more})
    return differences([plain, other])


def test_equal_answers_have_no_difference() -> None:
    """Two turns alike."""
    assert parted([1, 2, 3], [4, 5]) == []


def test_the_first_difference_is_named_with_turn_and_place() -> None:
    """The second turn's first token, by both ids."""
    (found,) = parted([1, 2, 3], [9, 5])
    assert (found.turn, found.place, found.plain, found.other) == (1, 0, 4, 9)
    assert "turn 2, token 1: 9, not 4" in str(found)


def test_a_shorter_answer_is_a_difference() -> None:
    """Zip alone would call it equal."""
    (found,) = parted([1, 2])
    assert (found.place, found.plain, found.other) == (2, 3, None)


def test_inexact_modes_and_failed_runs_are_not_compared() -> None:
    """Margin may differ; what failed says nothing."""
    assert parted([7], exact=False) == []
    assert parted([7], error="no") == []


def test_near_ties_are_forgiven_and_nothing_else() -> None:
    """The bound decides; an unmeasured gap is a fault."""
    (found,) = parted([1, 9])
    demand_equal([msgspec.structs.replace(found, gap=0.1)], set(), 0.2)
    for gap in (0.3, None):
        with pytest.raises(UnequalOutputs, match="question 1, turn 1, token 2"):
            demand_equal([msgspec.structs.replace(found, gap=gap)], set(), 0.2)


def test_peers_are_reported_not_refused() -> None:
    """Another program's kernels are its own."""
    demand_equal(parted([1, 9], who="server", peer=True), {"server"}, 0.2)


def test_a_gap_is_of_the_run_that_differs(
    open_llama: Callable[..., Any], tiny_ascii: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above temperature 0 plain decoding answers each repeat otherwise, and the second turn's prompt has that answer."""
    llm = open_llama(tiny_ascii)
    texts: list[list[int]] = []

    def rows(_llm: Any, text: list[int], _answer: list[int]) -> Any:
        texts.append(text)
        yield np.array([1.0, 3.0], dtype=np.float32)

    monkeypatch.setattr("pyspec.measure.bench.rows_after", rows)
    records = [record("plain", 1, turn([10 + i]), turn([7, 8]), repeat=i) for i in (0, 1)]
    records.append(record("strict", 1, turn([10]), turn([7, 9]), repeat=0, exact=True))
    records.append(record("strict", 1, turn([11]), turn([7, 9]), repeat=1, exact=True))
    found, tie = equality(llm, records, [Question(1, "qa", ["abc", "more"])], 0.5)
    assert [(one.repeat, one.gap) for one in found] == [(0, 2.0), (1, 2.0)]
    assert tie == 0.5
    assert [text[-1] for text in texts] == [7, 7]
    first, second = texts
    assert [(a, b) for a, b in zip(first, second, strict=True) if a != b] == [(10, 11)]


def test_nats_are_minus_the_log_probability() -> None:
    """Against a slow softmax."""
    row = np.array([1.0, 3.0, -2.0], dtype=np.float32)
    p = np.exp(row) / np.exp(row).sum()
    assert nats_of(row, 2) == pytest.approx(-np.log(p[2]), rel=1e-6)
    assert top_gap(row) == 2.0


def test_forced_rows_choose_the_greedy_answer(
    open_llama: Callable[..., Any], tiny_target: Path
) -> None:
    """The rows of 70 tokens, more than one decode holds, have the answer's tokens as argmax."""
    llm = open_llama(tiny_target)
    prompt = [5, 6, 7]
    steps = llm.steps(prompt, Sampling(temperature=0.0), max_tokens=70)
    answer = [token.id for step in steps for token in step.tokens]
    rows = list(rows_after(llm, prompt, answer))
    assert [int(row.argmax()) for row in rows] == answer


def test_tie_bound_is_small_where_kernels_round_alike(
    open_llama: Callable[..., Any], tiny_target: Path
) -> None:
    """A float32 model moves by less than the least bound."""
    llm = open_llama(tiny_target)
    assert tie_bound(llm, [([5, 6, 7], list(range(5, 21)))]) == TIE


def test_tie_bound_sees_what_kernels_do_to_long_texts(smollm2: str) -> None:
    """Behind 600 tokens attention sums up otherwise for one row than for several: logits move by tenths."""
    with SpeculativeLlama(smollm2, draft="none", n_ctx=1024, n_threads=2, verbose=False) as llm:
        prompt = llm.tokenize(b"The sea was calm, and the old man took his boat out. " * 60)[:600]
        answer = llm.tokenize(b" to catch some fish. He was not sure of the weather", add_bos=False)
        assert TIE < tie_bound(llm, [(prompt, answer)]) < 2.0
