"""What a graphics card is asked in one run: cells resume, time is kept, and the page has what was measured."""

import json
import os
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def card(script, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH / "card"))
    return lambda name: script(f"card/{name}")


def test_a_killed_table_goes_on_at_its_next_cell(
    card, tiny_target, tiny_draft, tiny_companion, questions, tmp_path
):
    """Fixed drafts draft what they say; plain none. Tokens of the first two rounds are not counted."""
    cells, sequences = tmp_path / "cells.jsonl", card("sequences")
    sizes = ["--sequences=1,2", "--temps=0", "--tokens=12", "--ctx=64", "--threads=1", "--gpu-layers=0"]  # fmt: skip
    models = {"good": tiny_draft, "companion": tiny_companion, "questions": questions("the quick", "brown fox")}  # fmt: skip
    options = [f"--{name}={value}" for name, value in models.items()]
    asked = [str(tiny_target), str(cells), *sizes, *options]
    sequences.main(asked)
    whole = cells.read_text().splitlines(keepends=True)
    measured = {sequences.key_of(cell)[1:]: cell for cell in map(json.loads, whole)}
    assert len(measured) == len(whole) == 2 * (len(sequences.ALONE) + len(sequences.JUDGED))
    plain, fixed = (measured[False, 2, 0.0, who] for who in ("plain", "fixed:3"))
    assert (plain["tokens"], plain["rounds"], plain["drafted"]) == (20, 10, 0)
    assert 0 < fixed["rounds"] < fixed["drafted"]
    cells.write_text("".join(whole)[:-20])
    sequences.main(asked)
    assert cells.read_text().splitlines(keepends=True)[:-2] == whole[:-1]
    assert [sequences.key_of(cell)[1:] for cell in sequences.measured(cells)] == list(measured)


def test_curves_are_timed(card, tiny_target, tmp_path):
    few = ["--depths=8,16", "--rows=1,2", "--repeat=1", "--gpu-layers=0", "--threads=1"]
    card("curves").main([str(tiny_target), str(tmp_path / "curves.jsonl"), *few])
    cells = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [(cell["flash"], cell["depth"]) for cell in cells] == [
        ("on", 8), ("on", 16), ("off", 8), ("off", 16)
    ]  # fmt: skip


def test_the_page_has_times_plain_of_the_same_batch(card, tmp_path):
    """With a companion the base is plain decoding beside that companion; a cell without a result is empty."""
    page = card("page")
    base = {"draft": "good", "sequences": 4, "temperature": 0.0, "placed": "", "machine": "a card", "commit": ""}  # fmt: skip
    base |= {"seconds": 1.0, "whole": 2.0, "decode_s": {"target": 1.9}}
    rates = {(False, "plain"): 100, (False, "auto"): 150, (True, "plain"): 50, (True, "companion"): 60}  # fmt: skip
    cells = [{**base, "companion": c, "contender": x, "tokens": n} for (c, x), n in rates.items()]
    out = tmp_path / "out"
    out.mkdir()
    (out / "sequences.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    page.take(out, tmp_path / "card")
    page.write(tmp_path / "card")
    text = (tmp_path / "card" / "README.md").read_text()
    assert "| good | 0 | 4 | 100 |  |  |  | 1.50 |  |  | 1.20 |" in text
    assert "| 4 | 5.0 % |  | 5.0 % |" in text


def test_a_run_keeps_to_its_budget(tmp_path):
    (tmp_path / "model.gguf").touch()
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    out = tmp_path / "out"
    (out / "bench-t0").mkdir(parents=True)
    (out / "bench-t0" / "results.json").touch()

    def lines(budget):
        own = {"BUDGET": str(budget), "PYTHON": str(fake), "WORK": str(tmp_path / "work"), "SERVER": "none"}  # fmt: skip
        words = [BENCH / "card" / "run.sh", tmp_path / "model.gguf", out]
        said = subprocess.check_output(words, env=os.environ | own, text=True)
        return dict(line.split(": ", 1) for line in said.splitlines())

    over, run = lines(0), lines(60)
    assert over.pop("bench-t0") == run.pop("bench-t0") == "done before"
    assert set(over.values()) == {"no time left"}
    assert all(told.startswith("status 3 ") for told in run.values())
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [one["step"] for one in steps] == list(run) == list(over)
