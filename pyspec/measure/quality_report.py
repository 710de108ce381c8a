"""The quality page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pyspec.measure.quality import BASE, DISTINCT_BOUND, NATS_BOUND, QualityResults
from pyspec.measure.report import setup_list, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspec.measure.quality import Gate, Interval


def quality_page(results: QualityResults, plots: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    setup = results.setup
    intro = (
        f"Made by `{results.command}` on {setup.day}; at most {setup.max_tokens} tokens an answer, "
        f"temperature {setup.temperature:g}. Nats are of the emitted tokens under the target, by "
        f"teacher forcing. Differences are from {BASE} on the same questions, with 95 % bootstrap "
        f"intervals over questions. Within the bounds: at most {NATS_BOUND} nats a token over "
        f"{BASE}, distinct-4 at most {DISTINCT_BOUND} lower, no check worse beyond its interval."
    )
    parts = [
        "# What the margin rule costs in quality",
        intro,
        f"**{results.verdict}**",
        gate_table(results.gates),
        "## Checks by a program",
        check_table(results.gates),
        "## Endings",
        _endings(results.gates),
        *(f"![{name.rpartition('.')[0]}]({name})" for name in plots),
        "## Setup",
        setup_list(setup),
    ]
    return "\n\n".join(parts) + "\n"


def save_quality(results: QualityResults, folder: Path, plots: Sequence[str] = ()) -> Path:
    """Write `quality.json` and the page `quality.md` into a folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (folder / "quality.json").write_bytes(data + b"\n")
    path = folder / "quality.md"
    path.write_text(quality_page(results, plots), encoding="utf-8")
    return path


def gate_table(gates: Sequence[Gate]) -> str:
    """Speed, nats, relaxed share and repetition of every rule."""
    head = ["", "speed-up", "nats a token", f"over {BASE}", "relaxed", "distinct-4",
            f"over {BASE}", "longest repeat", "tokens", "within"]  # fmt: skip
    rows = [
        [
            gate.who,
            f"{gate.speed_up:.2f}",
            f"{gate.nats:.3f}",
            _interval(gate.nats_over, 3),
            f"{100 * gate.relaxed:.1f} %",
            f"{gate.distinct:.3f}",
            _interval(gate.distinct_over, 3),
            f"{gate.longest_repeat:.1f}",
            f"{gate.tokens:.0f}",
            "yes" if gate.supported else "no",
        ]
        for gate in gates
    ]
    return table(head, rows)


def check_table(gates: Sequence[Gate]) -> str:
    """Passed of asked by kind, with the difference from strict in points."""
    kinds = sorted({kind for gate in gates for kind in gate.checks})
    if not kinds:
        return "None of the questions has a check."
    rows = [[gate.who, *(_check(gate, kind) for kind in kinds)] for gate in gates]
    return table(["", *kinds], rows)


def _check(gate: Gate, kind: str) -> str:
    passed, asked = gate.checks.get(kind, (0, 0))
    over = gate.checks_over.get(kind)
    return f"{passed}/{asked}" + (f" {_interval(over, 2)}" if over else "")


def _interval(value: Interval, digits: int) -> str:
    return f"{value.mean:+.{digits}f} [{value.low:+.{digits}f}, {value.high:+.{digits}f}]"


def _endings(gates: Sequence[Gate]) -> str:
    kinds = sorted({kind for gate in gates for kind in gate.endings})
    rows = [[gate.who, *(str(gate.endings.get(kind, 0)) for kind in kinds)] for gate in gates]
    return table(["", *kinds], rows)
