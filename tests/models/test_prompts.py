"""The mixture of prompts: stable, weighted, and free of the bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspec.models.recipe import prompts

from pyspec.errors import TrainingError


def test_the_order_is_fixed(prompt_file: Path) -> None:
    """Two loads with one seed give the same list, so a resumed run goes on where it was."""
    assert prompts.load(prompt_file, None, 3) == prompts.load(prompt_file, None, 3)


def test_bench_questions_are_left_out(prompt_file: Path, tmp_path: Path) -> None:
    """A prompt that equals a question of the bench but for punctuation is dropped."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"turns": ["Say hello, 3 times!"]}))
    texts = [text for _, text in prompts.load(prompt_file, bench, 1)]
    assert "say hello 2 times" in texts
    assert "say hello 3 times" not in texts


def test_the_heavier_source_comes_more_often(tmp_path: Path) -> None:
    """Early in the list, sources appear by their weights."""
    path = tmp_path / "p.jsonl"
    rows = [
        {"source": s, "prompt": f"{s} {i}"} for s in ("gsm8k-train", "t0-p3") for i in range(99)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first = [text.split()[0] for _, text in prompts.load(path, None, 1)][:200]
    assert first.count("gsm8k-train") == pytest.approx(2 * first.count("t0-p3"), abs=2)


def test_a_bad_line_is_one_sentence(tmp_path: Path) -> None:
    """A file of other content says what it should hold."""
    path = tmp_path / "p.jsonl"
    path.write_text("not json")
    with pytest.raises(TrainingError, match="is not a prompts file"):
        prompts.load(path, None, 1)
