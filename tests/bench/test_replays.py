"""Scripts of bench/ that replay recorded or made answers with policies."""

from __future__ import annotations

import pytest
from measure.simulate import load_rounds


def few_answers(grid, most):
    """Give each cell so many texts, not twelve."""
    texts = grid.texts_of
    grid.texts_of = lambda *cell: texts(*cell[:3], *(cell[3:] or [most]))


def test_the_grid_has_a_line_for_each_curve_and_start(script, tmp_path, capsys):
    """One acceptance, one draft cost, one seed: the policy against the best fixed length by hindsight."""
    few = ["--acceptance", "0.7", "--cost", "0.1"]
    grid, folder = script("grid"), tmp_path / "grid"
    few_answers(grid, 6)
    grid.main(["--seeds", "1", "--curve", "GPU", "--out", str(folder), *few])
    rows = capsys.readouterr().out.splitlines()
    named = [row.split(" | ")[:2] for row in rows if row.startswith("| GPU")]
    assert named == [["| GPU", "fresh"], ["| GPU", "profiled"]] * len(grid.ORACLE)
    assert rows[4] in (folder / "README.md").read_text()
    assert {row.count("|") for row in rows if row.startswith("|")} == {10}


def test_the_parts_of_the_policy_are_left_out_one_after_the_other(script, tmp_path, capsys):
    """A line each, with a column for each kind of texts; nothing left out comes first."""
    grid, folder = script("grid"), tmp_path / "grid"
    few_answers(grid, 3)
    few = ["--acceptance", "0.7", "--cost", "0.1", "--seeds", "1", "--curve", "BF16"]
    grid.main(["--parts", "--kind", "alike,four", "--out", str(folder), *few])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| (all there)",
        *(f"| {part}" for part in grid.PARTS if part not in grid.RECORDED),
    ]
    assert rows[1] in (folder / "parts-seen.md").read_text()
    assert {row.count("|") for row in rows} == {5}


@pytest.mark.parametrize("part", ["switch", "trials", "floors", "markup", "hope", "table", "line"])
def test_a_policy_without_one_of_its_parts_plays_otherwise(script, part):
    """What is left out is found in the policy as it is now: a part that had another name there would change nothing."""
    grid = script("grid")
    kinds = ("differ", "turn")
    cells = [
        grid.Cell("BF16", a, cost, 0, False, (), kind)
        for a, cost in ((0.3, 0.1), (0.7, 0.2))
        for kind in kinds
    ]
    assert any(grid.run(cell._replace(without=(part,))) != grid.run(cell) for cell in cells)


def test_all_parts_that_are_named_are_left_out(script):
    grid = script("grid")
    cell = grid.Cell("BF16", 0.7, 0.1, 0, False, (), "differ")
    parts = ("trials", "hope")
    both = grid.run(cell._replace(without=parts))
    assert both == grid.run(cell._replace(without=parts[::-1]))
    assert both not in [grid.run(cell._replace(without=(part,))) for part in parts]


def test_who_knows_chances_is_between_the_best_length_and_the_oracle(script):
    """Chances known before drafting are worth more than any one length, and less than knowing what will be accepted."""
    *fixed, informed, oracle = script("grid").baselines(
        script("grid").Cell("BF16", 0.85, 0.1, 0, False)
    )
    assert max(fixed) < informed < oracle


def test_committed_rounds_are_replayed(script, capsys):
    """A line for each curve, with a number in every column."""
    script("replay").main(["--curve", "GPU", str(script("replay").ROUNDS / "q4_k_m.gz")])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert rows[2][:2] == ["| q4_k_m", "GPU"]
    assert all(0.5 < float(cell.strip(" |")) < 20.0 for cell in rows[2][2:])


def test_rounds_without_a_companion_are_replayed(script, capsys):
    """What a companion would bring is not known then; the rest is."""
    script("replay").main(["--curve", "GPU", str(script("replay").ROUNDS / "eagle3.gz")])
    (cells,) = (line.split(" | ") for line in capsys.readouterr().out.strip().splitlines()[2:])
    assert cells[5:7] == ["-"] * 2
    assert all(0.5 < float(cell.strip(" |")) < 20.0 for cell in cells[2:5] + cells[7:])


def test_what_a_companion_is_worth_has_a_line_for_each_way(script, monkeypatch, tmp_path):
    """On one curve, for one text and for several: asked where it may be and where it has to be; more is known with it."""
    companion = script("companion")
    monkeypatch.setattr(companion, "CURVES", ("GPU",))
    monkeypatch.setattr(companion, "SEQUENCES", (1, 8))
    monkeypatch.setattr(companion, "COSTS", (0.0, 0.08))
    monkeypatch.setattr(companion, "FILES", ("q4_k_m", "head"))
    monkeypatch.setattr(companion, "load_rounds", lambda path: load_rounds(path)[::2])
    monkeypatch.setattr(companion, "commit", lambda: "abc1234")
    companion.main(["--out", str(tmp_path / "page.md")])
    assert "companion.py` at commit abc1234 on the" in (tmp_path / "page.md").read_text()
    rows = [row.split(" | ") for row in (tmp_path / "page.md").read_text().splitlines()]
    ways = [row[2:4] for row in rows if row[:2] == ["| q4_k_m", "GPU"]]
    assert ways == [["1", "may"], ["1", "has to"], ["8", "may"], ["8", "has to"]]
    (known,) = [row for row in rows if row[0] == "| q4_k_m" and len(row) == 6]
    assert float(known[2]) > float(known[3]) > float(known[4]) > 0.0
