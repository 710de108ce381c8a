"""What batches gained, on their page and in the README."""

from __future__ import annotations

from pathlib import Path

from pyspec.measure.batches import BatchResults, batch_table, load, readme_rows, save, summary
from pyspec.measure.setup import ModelFile


def results(title: str = "Batch") -> BatchResults:
    """A loop at 50 tokens a second and batches at 100, 50 and 200."""
    seconds = {"loop": 2.0, "plain:1": 1.0, "speculative:1": 2.0, "plain:16": 0.5}
    memory = {"loop": (400.0, 40.0), "plain:16": (500.0, 100.0)}
    ways = []
    for name, time in seconds.items():
        peak, kv = memory.get(name, (0.0, 0.0))
        runs = [{"tokens": 100, "seconds": time * k, "peak": peak, "kv": kv} for k in (0.5, 1, 2)]
        ways.append(summary(name, runs))
    return BatchResults(
        title, "python bench/batch.py", "2026-01-01", "a machine", 2, ModelFile("t.gguf", "ab", 9), 64,
        96, 3, ways,
    )  # fmt: skip


def test_speeds_are_medians_over_the_loop_and_over_plain() -> None:
    """And memory is what is left without the KV cells of both: 500 - 100 - 360 of 400."""
    rows = {line.split(" | ")[0].strip("| "): line for line in batch_table(results()).splitlines()}
    assert "| 200.0 | 4.00 | 1.00 | 500 | 100 | +10 % |" in rows["plain:16"]
    assert "| 50.0 | 1.00 | 0.50 |" in rows["speculative:1"]


def test_readme_sets_them_against_one_at_a_time() -> None:
    """The title stands in the first row and leads to the page."""
    rows = readme_rows(results(), "page.md")
    assert rows[0][:4] == ["[Batch](page.md)", "loop", "50.0", "0.50"]
    assert rows[3][:4] == ["", "plain:16", "200.0", "2.00"]


def test_page_has_every_result_of_the_folder(tmp_path: Path) -> None:
    """One section a file, and the plots."""
    (tmp_path / "soak.svg").touch()
    save(results("A"), tmp_path / "a.json")
    save(results("B"), tmp_path / "b.json")
    assert [found.title for found in load(tmp_path)] == ["A", "B"]
    text = (tmp_path / "README.md").read_text()
    assert text.index("## A") < text.index("## B") < text.index("![soak](soak.svg)")
