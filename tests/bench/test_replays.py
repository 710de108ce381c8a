"""Scripts of bench/ that replay recorded or made answers with policies."""

from itertools import product

import pytest
from measure.parts import PARTS, RECORDED
from measure.simulate import load_rounds


def few_answers(grid, most):
    texts = grid.texts_of
    grid.texts_of = lambda *cell: texts(*cell[:3], *(cell[3:] or [most]))


@pytest.fixture
def play(script, tmp_path, capsys):
    """Have grid.py write a page of one acceptance, draft cost and seed, a few answers a cell; returns the tables' rows."""

    def run(page, most, *words):
        few_answers(grid := script("grid"), most)
        few = ["--acceptance", "0.7", "--cost", "0.1", "--seeds", "1"]
        grid.main([*few, *words, "--out", str(tmp_path)])
        text = (tmp_path / page).read_text()
        assert text == capsys.readouterr().out[:-1]
        return grid, [line for line in text.splitlines() if line.startswith("|")]

    return run


def test_the_grid_has_a_line_for_each_curve_and_start(play):
    grid, rows = play("README.md", 6, "--curve", "GPU")
    named = [row.split(" | ")[:2] for row in rows if row.startswith("| GPU")]
    assert named == [["| GPU", "fresh"], ["| GPU", "profiled"]] * len(grid.ORACLE)
    assert {row.count("|") for row in rows} == {10}


def test_the_parts_of_the_policy_are_left_out_one_after_the_other(play):
    _, rows = play("parts.md", 3, "--parts", "--kind", "alike,four", "--curve", "BF16")
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| (all there)", *(f"| {part}" for part in PARTS if part not in RECORDED)
    ]  # fmt: skip
    assert {row.count("|") for row in rows} == {5}


@pytest.mark.parametrize("part", ["switch", "trials", "floors", "markup", "table", "line"])
def test_a_policy_without_one_of_its_parts_plays_otherwise(script, part):
    grid = script("grid")
    ways = product(((0.3, 0.1), (0.7, 0.2)), ("differ", "turn"))
    cells = [grid.Cell("BF16", *pair, 0, False, kind=kind) for pair, kind in ways]
    assert any(grid.run(cell._replace(without=part)) != grid.run(cell) for cell in cells)


def test_who_knows_chances_is_between_the_best_length_and_the_oracle(script):
    """Chances known before drafting are worth more than any one length, and less than knowing what will be accepted."""
    grid = script("grid")
    *fixed, informed, oracle = grid.baselines(grid.Cell("BF16", 0.85, 0.1, 0, False))
    assert max(fixed) < informed < oracle


def test_committed_rounds_are_replayed(script, capsys):
    """In each way of which there are rounds: none of these was drawn at a temperature."""
    replay = script("replay")
    replay.main(["--curve", "GPU", *(str(replay.ROUNDS / f"{n}.gz") for n in ("q4_k_m", "eagle3"))])
    head, _, row = (line for line in capsys.readouterr().out.splitlines() if line[:1] == "|")
    assert head == "| without | greedy | with the companion | copying |"
    figures = [float(n) for cell in row.split("|")[2:-1] for n in cell.split(",")]
    assert 1.0 < min(figures) <= max(figures) < 20.0


def test_what_a_companion_is_worth_has_a_line_for_each_way(script, monkeypatch, tmp_path):
    companion = script("companion")
    few = {
        "CURVES": ("GPU",), "SEQUENCES": (1, 8), "COSTS": (0.0, 0.08), "FILES": ("q4_k_m", "head"),
        "load_rounds": lambda path: load_rounds(path)[::2],
    }  # fmt: skip
    for name, value in few.items():
        monkeypatch.setattr(companion, name, value)
    monkeypatch.setattr("common.commit", lambda: "abc1234")
    companion.main(["--out", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert "companion.py --out page.md` at commit abc1234." in text
    rows = [row.split(" | ") for row in text.splitlines()]
    ways = [row[2:4] for row in rows if row[:2] == ["| q4_k_m", "GPU"]]
    assert ways == [["1", "may"], ["1", "has to"], ["8", "may"], ["8", "has to"]]
    (known,) = [row for row in rows if row[0] == "| q4_k_m" and len(row) == 6]
    assert float(known[2]) > float(known[3]) > float(known[4]) > 0.0
