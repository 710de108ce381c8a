"""What batches gained: figures, page, and the script itself."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from common import medians
from measure.records import ModelFile

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def batch(script):
    return script("batch")


def results(batch, title="Batch"):
    seconds = {"loop": 2.0, "plain:1": 1.0, "speculative:1": 2.0, "plain:16": 0.5}
    memory = {"loop": (400.0, 40.0), "plain:16": (500.0, 100.0)}
    found = []
    for name, time in seconds.items():
        peak, kv = memory.get(name, (0.0, 0.0))
        known = {"tokens": 100, "peak": peak, "kv": kv}
        runs = [{**batch.NOT_KNOWN, **known, "rate": 100 / (time * k)} for k in (0.5, 1, 2)]
        found.append({"name": name, **medians(runs)})
    return batch.BatchResults(
        title=title, command="python bench/batch.py", day="2026-01-01", machine="a machine", threads=2,
        target=ModelFile("t.gguf", "ab", 9), records=64, max_tokens=96, repeat=3, contenders=found,
    )  # fmt: skip


def test_speeds_are_medians_over_the_loop_and_over_plain(batch):
    """And memory is what is left without the KV cells of both: 500 - 100 - 360 of 400."""
    lines = results(batch).table().splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert "| 200.0 | 4.00 | 1.00 | 500 | 100 | +10 % |" in rows["plain:16"]
    assert "| 50.0 | 1.00 | 0.50 |" in rows["speculative:1"]


def test_the_page_has_every_result_of_the_folder(script, batch, tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(results(batch, name.upper())))
    script("common").write_page(tmp_path, batch.BatchResults)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Batches\n\n")
    assert 0 < text.index("## A") < text.index("## B")


@pytest.mark.usefixtures("in_forks")
def test_the_script_measures_every_contender_and_writes_the_page(tiny_ascii, questions, tmp_path):
    command = [
        sys.executable, BENCH / "batch.py", tiny_ascii, questions("abc 0", "abc 1", "abc 2"), "--records", "3", "--tokens", "4",
        "--parallel", "2", "--threads", "1", "--repeat", "1", "--ctx", "128", "--out", tmp_path / "tiny.json",
    ]  # fmt: skip
    done = subprocess.run(command, check=False, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "tiny.json").read_text())["contenders"]
    assert [one["name"] for one in found] == ["loop", "plain:2", "speculative:2"]
    assert {one["tokens"] for one in found} == {12.0}
    assert min(one["rate"] for one in found) > 0.0
    assert "plain:2" in done.stdout
    assert (tmp_path / "README.md").exists()
