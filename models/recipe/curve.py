"""The course of a training run: a table and a picture."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np


def write_curve(folder: Path, curve: list[dict[str, float]]) -> None:
    """`curve.csv` (one line a step) and `curve.png`."""
    if not curve:
        return
    with (folder / "curve.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list({key: None for row in curve for key in row}))
        table.writeheader()
        table.writerows(curve)
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        return  # the numbers are there; the picture needs the extra
    figure = Figure((7, 4))
    axes = figure.subplots()
    window = max(1, len(curve) // 50)
    for name in sorted({key for row in curve for key in row if key[:5] == "agree"}):
        steps, values = zip(*((r["step"], r[name]) for r in curve if name in r), strict=True)
        smooth = np.convolve(values, np.ones(window) / window, "valid")
        axes.plot(
            steps[len(steps) - len(smooth) :], smooth, label=f"agreement, draft step {name[5:]}"
        )
    axes.set_xlabel("step")
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=120)
