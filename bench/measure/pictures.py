"""Plots of measurements; matplotlib is optional."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any


def can_draw() -> bool:
    """Whether matplotlib is installed and loads: it may have been built for another numpy."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    return True


def new_axes(title: str, x: str, y: str, width: float = 7.0) -> tuple[Any, Any]:
    import matplotlib as mpl  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    # letters stay text, which takes a fifth of the bytes; the fixed salt makes a redrawn picture the same file
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pyspec"})
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_lines(title: str, x: str, y: str, lines: Mapping[str, Sequence[float]]) -> Any:
    """Plot lines by name, over 1, 2, ..."""
    figure, axes = new_axes(title, x, y)
    for name, values in lines.items():
        axes.plot(range(1, len(values) + 1), values, marker=".", label=name)
    axes.legend(frameon=False, fontsize="small")
    return figure
