"""Pages, results.json, and the README's table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from measure.making import record, turn

from pyspec.errors import InputError
from pyspec.measure import readme
from pyspec.measure.equal import Difference
from pyspec.measure.report import Results, collect, page, save

ROOT = Path(__file__).parents[2]


def results(title: str = "Bench") -> Results:
    """Two ways on one question."""
    records = [
        record("plain", 1, turn([1, 2, 3], 2.0), exact=True),
        record("slow", 1, turn([1, 2, 3], 4.0)),
        record("slow", 2, error="it broke"),
    ]
    found = [Difference("server", 1, 0, 2, 3, 4, 0.01)]
    return collect(
        records, found, 0.2, title=title, command="pyspec bench", notes=["server is skipped"],
        memory={"plain": 99.6},
    )  # fmt: skip


def test_the_page_says_everything() -> None:
    """Losing rows, differences, errors, memory, files and the command are on it."""
    text = page(results(), ["speed-up.svg"])
    for part in ("| slow | 0.50 | 0.50 | 0.50 |", "it broke", "server is skipped", "0.010 nats",
                 "100 |", "`pyspec bench`", "t.gguf", "sha256 ab", "![speed-up](speed-up.svg)"):  # fmt: skip
        assert part in text


def test_own_ways_are_set_against_peers() -> None:
    """Ratios of speeds, by category; no section where there is no peer."""
    records = [
        record("plain", 1, turn([1, 2, 3], 2.0)),
        record("strict", 1, turn([1, 2, 3], 1.0)),
        record("server", 1, turn([1, 2, 3], 4.0), peer=True),
    ]
    text = page(collect(records, [], 0.1, title="t", command="c"))
    assert "| plain | 2.00 |" in text
    assert "| strict | 4.00 |" in text
    assert "Against" not in page(results())


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    """What was saved is what was measured."""
    save(results(), tmp_path)
    saved = msgspec.json.decode((tmp_path / "results.json").read_bytes(), type=Results)
    assert saved == results()


def test_the_block_is_made_of_all_results(tmp_path: Path) -> None:
    """In the order of their names, each with a link to its page."""
    for name in ("b", "a"):
        save(results(name.upper()), tmp_path / name)
    block = readme.results_block(tmp_path)
    assert block.index("[A](bench/results/a/README.md)") < block.index("[B](")
    assert "| slow |" in block


def test_only_what_is_between_the_marks_changes() -> None:
    """And doing it again changes nothing."""
    text = f"before\n{readme.START}\nold\n{readme.END}\nafter\n"
    new = readme.replaced(text, "| new |")
    assert new == f"before\n{readme.START}\n| new |\n{readme.END}\nafter\n"
    assert readme.replaced(new, "| new |") == new


def test_a_readme_without_marks_is_refused() -> None:
    """Nothing is appended somewhere."""
    with pytest.raises(InputError, match="has no"):
        readme.replaced("text", "x")


def test_the_readme_shows_the_results_of_this_repository() -> None:
    """Its table is the one made from bench/results."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.replaced(text, readme.results_block(ROOT / "bench" / "results")) == text
