"""`pyspec quality`, as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from pyspec.measure.quality import QualityResults

QUESTIONS = """\
{"question_id": 1, "category": "a", "turns": ["abc abc"], "check": [{"kind": "json"}]}
{"question_id": 2, "category": "b", "turns": ["hello"]}
"""


def test_gates_are_judged_and_the_page_is_written(tiny_ascii: Path, tmp_path: Path) -> None:
    """Plain and strict are added; nats, checks and a verdict are there."""
    questions = tmp_path / "q.jsonl"
    questions.write_text(QUESTIONS)
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "pyspec", "quality", "-m", str(tiny_ascii), "--draft", "lookup",
        "--trust-model", "-c", "256", "-t", "1", "-n", "8", "--warm-up", "0",
        "--questions", str(questions), "--out", str(out),
        "--gates", "margin,margin/gap=inf/theta=0.5", "--length", "fixed:4",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode == 0, done.stderr
    results = msgspec.json.decode((out / "quality.json").read_bytes(), type=QualityResults)
    names = ["plain", "strict", "margin+fixed:4", "margin/gap=inf/theta=0.5+fixed:4"]
    assert sorted(gate.who for gate in results.gates) == sorted(names)
    by_name = {gate.who: gate for gate in results.gates}
    assert by_name["strict"].nats_over.mean == 0.0
    assert by_name["plain"].nats == by_name["strict"].nats > 0.0
    assert by_name["strict"].checks == {"json": (0, 1)}
    assert results.verdict in done.stdout
    assert results.verdict in (out / "quality.md").read_text()
