"""What a graphics card is asked in one run: cells resume, time is kept, and the page says what is not known."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def card(script, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH / "card"))
    return lambda name: script(f"card/{name}")


@pytest.fixture
def asked(tiny_target, tiny_draft, tiny_companion, questions, tmp_path):
    sizes = ["--sequences=1,2", "--temps=0", "--tokens=12", "--ctx=64", "--threads=1", "--gpu-layers=0"]  # fmt: skip
    models = {"good": tiny_draft, "companion": tiny_companion, "questions": questions("the quick", "brown fox")}  # fmt: skip
    options = [f"--{name}={value}" for name, value in models.items()]
    return [str(tiny_target), str(tmp_path / "cells.jsonl"), *sizes, *options]


def test_a_killed_table_goes_on_at_its_next_cell(card, asked, tmp_path):
    cells = tmp_path / "cells.jsonl"
    sequences = card("sequences")
    sequences.main(asked)
    whole = cells.read_text().splitlines(keepends=True)
    found = [sequences.key_of(json.loads(line)) for line in whole]
    assert len(set(found)) == len(found) == 2 * (len(sequences.ALONE) + len(sequences.JUDGED))
    cells.write_text("".join(whole)[:-20])
    sequences.main(asked)
    again = cells.read_text().splitlines(keepends=True)
    assert again[:-2] == whole[:-1]
    assert [sequences.key_of(cell) for cell in sequences.measured(cells)] == found


def test_a_cell_has_raw_figures(card, asked, tmp_path):
    """Fixed drafts draft what they say; plain none. Tokens of the first two rounds are not counted."""
    sequences = card("sequences")
    sequences.main(asked)
    cells = sequences.measured(tmp_path / "cells.jsonl")
    found = {sequences.key_of(cell)[1:]: cell for cell in cells}
    plain, fixed = (found[False, 2, 0.0, who] for who in ("plain", "fixed:3"))
    assert (plain["tokens"], plain["rounds"], plain["drafted"]) == (20, 10, 0)
    assert 0 < fixed["rounds"] < fixed["drafted"]
    assert fixed["accepted"] <= fixed["verified"]
    assert all(0 < cell["seconds"] < cell["whole"] for cell in found.values())


def test_no_cell_begins_when_the_time_is_over(card, asked, tmp_path):
    card("sequences").main([*asked, f"--until={time.time() - 1}"])
    assert not (tmp_path / "cells.jsonl").exists()


def test_a_killed_curve_goes_on(card, tiny_target, tmp_path):
    curves, out = card("curves"), tmp_path / "curves.jsonl"
    few = ["--depths=8,16", "--rows=1,2", "--repeat=1", "--gpu-layers=0", "--threads=1"]
    curves.main([str(tiny_target), str(out), *few])
    whole = out.read_text().splitlines(keepends=True)
    assert len(whole) == 4
    out.write_text("".join(whole[:3]))
    curves.main([str(tiny_target), str(out), *few])
    again = out.read_text().splitlines(keepends=True)
    assert again[:3] == whole[:3]
    assert [json.loads(line)["depth"] for line in again] == [8, 16, 8, 16]


def test_without_results_the_page_has_empty_cells(card, tmp_path):
    page = card("page")
    page.write(tmp_path / "card")
    text = (tmp_path / "card" / "README.md").read_text()
    assert page.NO_CARD in text
    assert f"| good | 0.8 | 64 |{'  |' * 8}" in text
    assert "| wide target, T 1 | margin |  |" in text


def test_the_page_has_times_plain_of_the_same_batch(card, tmp_path):
    """With a companion the base is plain decoding beside that companion."""
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
    assert page.NO_CARD not in text


def test_the_page_names_failed_tests_and_no_folders(card, tmp_path):
    page, out = card("page"), tmp_path / "out"
    out.mkdir()
    what = "AssertionError: /home/me/x/rows.py differs"
    failed = f'<failure message="{what}">/home/me/a.py:1</failure>'
    cases = f'<testcase classname="t" name="a"/><testcase classname="t" name="b">{failed}</testcase>'  # fmt: skip
    suite = f'<testsuites><testsuite hostname="mine">{cases}</testsuite></testsuites>'
    (out / "tests.xml").write_text(suite)
    page.take(out, tmp_path / "card")
    page.write(tmp_path / "card")
    text = (tmp_path / "card" / "README.md").read_text()
    assert "| 1 | 1 | 0 |" in text
    assert "- `t.b`: AssertionError: rows.py differs" in text
    kept = (tmp_path / "card" / "tests.xml").read_text().replace('"', "/").split("/")
    assert not {"home", "mine"} & {*kept}


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
    some = {"make-wide", "sequences", "curves", "tests", "mixture-processor"}
    assert over.keys() == run.keys() >= some
    assert all(told.startswith("status 3 ") for told in run.values())
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [one["step"] for one in steps] == list(run)
