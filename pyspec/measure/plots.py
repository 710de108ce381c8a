"""Plots of results; matplotlib is optional (`pip install pyspec-llama[plot]`)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from pyspec.errors import OptionError
from pyspec.measure.stats import TOTAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspec.measure.records import Record
    from pyspec.measure.stats import Summary


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_axes(title: str, x: str, y: str, width: float = 7.0) -> tuple[Any, Any]:
    """An empty figure and its axes. Raises OptionError without matplotlib."""
    if not available():
        raise OptionError("plots need matplotlib", "pip install 'pyspec-llama[plot]'")
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    figure = Figure(figsize=(width, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def all_plots(
    records: Sequence[Record], summaries: Sequence[Summary], curves: Mapping[str, Any], folder: Path
) -> list[str]:
    """Draw everything that the data allow into `folder`; returns the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {
        "speed-up.svg": speed_up(summaries),
        "accepted-by-position.svg": accepted_by_position(records),
        "predicted.svg": predicted(records),
        "cost.svg": cost(curves),
    }
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(folder / name)
    return [name for name, figure in drawn.items() if figure is not None]


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


def accepted_by_position(records: Sequence[Record]) -> Any | None:
    """Lines: share of rounds in which the i-th drafted token was taken."""
    counts: dict[str, tuple[int, list[int]]] = {}
    for record in records:
        for turn in record.turns:
            taken = turn.speculation.get("accepted_by_position")
            if taken:
                rounds, total = counts.get(record.who, (0, []))
                total += [0] * (len(taken) - len(total))
                total = [a + (taken[i] if i < len(taken) else 0) for i, a in enumerate(total)]
                counts[record.who] = rounds + int(turn.speculation["rounds"]), total
    if not counts:
        return None
    figure, axes = new_axes("accepted by position", "drafted token", "share of rounds")
    for who, (rounds, total) in counts.items():
        axes.plot(range(1, len(total) + 1), [n / rounds for n in total], marker=".", label=who)
    axes.legend(frameon=False, fontsize="small")
    return figure


def predicted(records: Sequence[Record]) -> Any | None:
    """Points: tokens an answer's choice expected to be accepted, and those that were."""
    points: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for turn in record.turns:
            choice = turn.speculation.get("choice", {})
            if choice.get("tokens_predicted"):
                pair = float(choice["tokens_predicted"]), float(choice["tokens_accepted"])
                points.setdefault(record.who, []).append(pair)
    if not points:
        return None
    figure, axes = new_axes("accepted tokens of an answer", "predicted", "observed")
    for who, pairs in points.items():
        axes.scatter(*zip(*pairs, strict=False), s=8, label=who)
    most = max(max(pair) for pairs in points.values() for pair in pairs)
    axes.plot([0, most], [0, most], color="black", linewidth=0.8)
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
    """Points: a way's nats per token over the control's (x) and its tokens a verify over the control's (y)."""
    title = f"what a rule brings and costs, against {control}"
    figure, axes = new_axes(title, "nats a token over the control", "tokens a verify, times")
    for name, (nats, gain) in points.items():
        axes.scatter([nats], [gain], s=16)
        axes.annotate(name, (nats, gain), fontsize="x-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    return figure
