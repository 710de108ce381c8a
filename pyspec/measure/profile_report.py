"""A profile as tables, as a plot and as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from pyspec.measure import plots

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from pyspec.measure.profile import Measured


def summary(m: Measured) -> dict[str, Any]:
    """The figures as plain values; times in ms."""
    return {
        "target_ms": m.costs.target,
        "draft_step_ms": m.costs.draft_step,
        "companion_ms": m.costs.companion,
        "spread": m.costs.spread,
        "acceptance": m.acceptance,
        "observations": m.counts,
        "calibration": [
            {"said": b.said / b.count, "accepted": b.accepted / b.count, "count": b.count}
            for b in m.bins
            if b.count
        ],
        "log_loss_without_companion": m.loss_without,
        "log_loss_with_companion": m.loss_with,
        "lookup_share": m.lookup_share,
        "break_even_acceptance": m.break_even,
        "plans": m.plans,
        "best_plan": m.best_plan,
        "auto": m.auto,
        "seconds": m.seconds,
        "warnings": m.warnings,
    }


def say(m: Measured, out: Console) -> None:
    """Print the tables."""
    out.print(_cost_table(m))
    if m.acceptance:
        out.print(_position_table(m))
        out.print(_calibration_table(m))
    for line in _lines(m):
        out.print(line)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cost_table(m: Measured) -> Table:
    depths = list(m.costs.target)
    heads = [f"target, {depth} deep" for depth in depths]
    table = _table("ms of a decode", "rows", *heads, "times one row", "companion")
    first = m.costs.target[depths[0]]
    for n, ms in first.items():
        companion = m.costs.companion.get(n)
        table.add_row(
            str(n),
            *(f"{m.costs.target[depth][n]:.2f}" for depth in depths),
            f"{ms / first[1]:.2f}",
            "" if companion is None else f"{companion:.2f}",
        )
    return table


def _position_table(m: Measured) -> Table:
    table = _table("drafted tokens, strict rule", "position", "accepted", "seen", "plan", "gain")
    for i, (share, count) in enumerate(zip(m.acceptance, m.counts, strict=True), 1):
        gain = m.plans.get(f"fixed:{i}")
        shown = "" if gain is None else f"{gain:.2f}"
        table.add_row(str(i), f"{100 * share:.0f} %", str(count), f"fixed:{i}", shown)
    return table


def _calibration_table(m: Measured) -> Table:
    table = _table("calibration of the draft", "it says", "accepted", "tokens")
    for b in m.bins:
        if b.count:
            said, accepted = b.said / b.count, b.accepted / b.count
            table.add_row(f"{100 * said:.0f} %", f"{100 * accepted:.0f} %", str(b.count))
    return table


def _lines(m: Measured) -> list[str]:
    out = []
    if m.acceptance:
        even = f"{100 * m.break_even:.0f} %" if m.break_even <= 1.0 else "out of reach"
        row = m.curve.target.table(min(m.costs.target))[1]
        out.append(
            f"the draft: {m.costs.draft_step:.2f} ms a step, {100 * m.costs.draft_step / row:.0f} % of a row of the "
            f"target; its first token is accepted {100 * m.acceptance[0]:.0f} % of the time"
        )
        out.append(f"break-even acceptance: {even}")
        if m.loss_with is None:
            out.append(f"log-loss: {m.loss_without:.3f} nats a token, without a companion")
        else:
            worth = m.loss_without - m.loss_with
            losses = f"{m.loss_without:.3f} nats a token, {m.loss_with:.3f} with the companion"
            out.append(f"log-loss: {losses} ({worth:+.3f})")
    out.append(f"prompt lookup right at {100 * m.lookup_share:.0f} % of positions")
    best = m.best_plan
    out.append(f"best fixed plan: {best} ({m.plans[best]:.2f} times plain)")
    out.append(f"length auto on these rounds: {m.auto:.2f} times plain, without Python's time")
    out.append(f"measured in {m.seconds:.0f} s")
    return out


def draw(m: Measured, path: Path) -> None:
    """Save the cost curve as a plot. Raises OptionError without matplotlib."""
    curves = {
        f"target, {depth} deep": [0.0, *times.values()] for depth, times in m.costs.target.items()
    }
    if m.costs.draft_step:
        last = len(next(iter(curves.values())))
        curves["draft, tokens one by one"] = [k * m.costs.draft_step for k in range(last)]
    figure = plots.cost(curves)
    if figure is not None:
        figure.savefig(path)
