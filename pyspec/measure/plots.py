"""Pictures of results; matplotlib is optional (`pip install pyspec-llama[plot]`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from pyspec.errors import OptionError
from pyspec.measure.records import RunRecord
from pyspec.measure.stats import TOTAL, Summary


class Drawn(msgspec.Struct):
    """What the pictures of a run are drawn from, beside its summaries; modes and peers by name.

    taken: rounds, and in how many of them the i-th drafted token was taken. curves: ms of a decode by rows, from 0.
    """

    taken: dict[str, tuple[int, list[int]]] = {}
    curves: dict[str, list[float]] = {}


def gather(records: Sequence[RunRecord], curves: Mapping[str, Sequence[float]]) -> Drawn:
    """Keep of the records what is drawn."""
    out = Drawn(curves={name: [round(t, 3) for t in times] for name, times in curves.items()})
    for record in records:
        for turn in record.turns:
            if taken := turn.speculation.get("accepted_by_position"):
                rounds, total = out.taken.get(record.who, (0, []))
                counts = [a + b for a, b in zip_longest(total, taken, fillvalue=0)]
                out.taken[record.who] = rounds + int(turn.speculation["rounds"]), counts
    return out


def available() -> bool:
    """Whether matplotlib is installed, and loads: it may have been built for another numpy."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    return True


def new_axes(title: str, x: str, y: str, width: float = 7.0) -> tuple[Any, Any]:
    """An empty figure and its axes. Raises OptionError without matplotlib."""
    if not available():
        raise OptionError("plots need matplotlib", "pip install 'pyspec-llama[plot]'")
    import matplotlib as mpl  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    # letters stay letters, which is a fifth of the bytes, and a picture drawn again is the same file
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pyspec"})
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
    """Save a picture; an SVG without the day, so that the same data give the same file."""
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_all(drawn: Drawn, summaries: Sequence[Summary], folder: Path) -> list[str]:
    """Draw everything that the data allow into `folder`; returns the files' names."""
    figures = {
        "speed-up.svg": speed_up(summaries),
        "accepted-by-position.svg": accepted_by_position(drawn.taken),
        "cost.svg": cost(drawn.curves),
    }
    for name, figure in figures.items():
        (folder / name).unlink(missing_ok=True)
        if figure is not None:
            save_figure(figure, folder / name)
    return [name for name, figure in figures.items() if figure is not None]


def speed_up(summaries: Sequence[Summary]) -> Any:
    """Bars: speed-up by category, a group a category."""
    names = [*{n: None for s in summaries for n in s.speeds if n != TOTAL}, TOTAL]
    figure, axes = new_axes("speed-up over plain decoding", "", "times", 2.0 + 0.9 * len(names))
    shown = [s for s in summaries if s.who != "plain"] or list(summaries)
    width = 0.8 / len(shown)
    for k, summary in enumerate(shown):
        at = [i + (k - (len(shown) - 1) / 2) * width for i in range(len(names))]
        speeds = [summary.speeds.get(n) for n in names]
        axes.bar(at, [s.speed_up if s else 0.0 for s in speeds], width, label=summary.who)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.legend(frameon=False, fontsize="small")
    return figure


def accepted_by_position(taken: Mapping[str, tuple[int, Sequence[int]]]) -> Any | None:
    """Lines: share of rounds in which the i-th drafted token was taken."""
    if not taken:
        return None
    figure, axes = new_axes("accepted by position", "drafted token", "share of rounds")
    for who, (rounds, counts) in taken.items():
        shares = [n / rounds for n in counts]
        axes.plot(range(1, len(shares) + 1), shares, marker=".", label=who)
    axes.legend(frameon=False, fontsize="small")
    return figure


def cost(curves: Mapping[str, Sequence[float]]) -> Any | None:
    """Lines: ms of a decode by rows; `curves` by name, index 0 being no row."""
    if not curves:
        return None
    figure, axes = new_axes("cost of a decode", "rows", "ms")
    for name, times in curves.items():
        axes.plot(range(1, len(times)), times[1:], marker=".", label=name)
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False, fontsize="small")
    return figure


def gain_against_nats(points: Mapping[str, tuple[float, float]], control: str) -> Any:
    """Points: a variant's nats per token over the control's (x) and its tokens a verify over the control's (y)."""
    title = f"what a rule brings and costs, against {control}"
    figure, axes = new_axes(title, "nats a token over the control", "tokens a verify, times")
    for name, (nats, gain) in points.items():
        axes.scatter([nats], [gain], s=16)
        axes.annotate(name, (nats, gain), fontsize="x-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    return figure
