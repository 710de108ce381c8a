"""The mixture of prompts: stable, weighted, and free of the bench."""

import json
import random

import pytest
from click.testing import CliRunner
from measure.questions import load_questions

from models.recipe import prompts
from pyspec.errors import TrainingError


def test_the_order_is_fixed(prompt_file):
    assert prompts.load(prompt_file, None, 3) == prompts.load(prompt_file, None, 3)


def test_bench_questions_are_left_out(prompt_file, tmp_path):
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"turns": ["Say hello, 3 times!"]}))
    texts = [text for _, text in prompts.load(prompt_file, bench, 1)]
    assert "say hello 2 times" in texts
    assert "say hello 3 times" not in texts


def test_the_heavier_source_comes_more_often(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [
        {"source": s, "prompt": f"{s} {i}"} for s in ("gsm8k-train", "t0-p3") for i in range(99)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first = [text.split()[0] for _, text in prompts.load(path, None, 1)][:200]
    assert first.count("gsm8k-train") == pytest.approx(2 * first.count("t0-p3"), abs=2)


def test_a_bad_line_is_one_sentence(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("not json")
    with pytest.raises(TrainingError, match="is not a prompts file"):
        prompts.load(path, None, 1)


def test_kinds_that_came_later_have_the_highest_numbers(tmp_path):
    """What was written before is kept by number, so no number may come to mean another prompt."""
    path = tmp_path / "p.jsonl"
    article = "The bridge " + "was built of stone and carries trains " * 15 + "today."
    asked = {"source": "t0-p3", "prompt": f"{article}\nWhat does the old bridge carry?"}
    path.write_text(json.dumps(asked))
    by_number = dict(prompts.load(path, None, 1))
    first = 1 + sum(1 for _ in prompts._made([asked["prompt"]], random.Random(1)))  # noqa: S311
    later = [by_number[n] for n in sorted(by_number) if n >= first]
    kinds = [text.split(":")[0] for text in later]
    assert kinds[:4000] == ["Translate German to English"] * 4000
    assert kinds[4000] == "Summarize"
    assert later[4001].endswith("today.\nWhat does the old bridge carry?")
    assert not any("{" in text for text in later)


def test_held_out_prompts_are_questions(prompt_file, tmp_path):
    """`bench/pair.py` reads them, and none has a number that is trained on."""
    out = tmp_path / "held.jsonl"
    words = ["--prompts", str(prompt_file), "--count", "5", "--longest", "200", "--out", str(out)]
    assert CliRunner().invoke(prompts.main, words).exit_code == 0
    by_number = dict(prompts.load(prompt_file, None, 1))
    found = load_questions(out)
    assert len(found) == 5
    for question in found:
        assert int(question.question_id) % 50 == 0
        assert question.turns == [by_number[int(question.question_id)]]
