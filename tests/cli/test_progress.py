"""What a batch says of itself while it runs, where there is no terminal, and at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pyspec.batch.files import RunProgress
from pyspec.batch.records import Result, Usage
from pyspec.cli import progress


def lines(times: list[float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of ten records of which one ends at each of these seconds."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    out = io.StringIO()
    summary = RunProgress(10)
    with progress.batch_progress(summary, Console(file=out, width=120)) as report:
        for i, now[0] in enumerate(times):
            result = Result(index=i, id=str(i), prompt_sha256="", usage=Usage(1, 5, 6))
            summary.count(result)
            report(result)
    return out.getvalue().splitlines()


def test_the_pace_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of 60 s, models and workers, says nothing of the nine records that are left."""
    assert lines([60.0, 65.0, 71.0], monkeypatch) == [
        "1/10 records, 0.1 tok/s",
        "3/10 records, 0.2 tok/s, about 38 s left",
    ]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"kv_cells": 512, "prefix_tokens": 7}, "4 sequences, 512 KV cells, 7 tokens shared"),
        ({"workers": 2}, "4 sequences, over 2 workers"),
    ],
)
def test_the_summary_says_where_answers_ran(facts: dict[str, int], says: str) -> None:
    """Cells are told of by those who have them."""
    out = io.StringIO()
    counts = {"done": 3, "kept": 0, "failed": 0, "reasons": {"stop": 3}, "parallel": 4}
    progress.show_summary({**counts, **facts}, Console(file=out, width=120))
    assert says in out.getvalue()
