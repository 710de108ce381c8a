"""Writes records as a page with pictures: what was measured, on what, and the result, including losing rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .records import BOUND, Difference, RunRecord, Setup
from .speeds import TOTAL, Summary, geomean, summarise

R = TypeVar("R")
T = TypeVar("T")
SHOWN = 20
"""Most differences that a page shows; its results have all."""


class PictureData(msgspec.Struct):
    """What the pictures of a run are drawn from, besides its summaries; modes and peers by name.

    taken: the number of rounds, and how often the i-th drafted token was accepted. curves: ms of a decode by rows, from 0.
    """

    taken: dict[str, tuple[int, list[int]]] = {}
    curves: dict[str, list[float]] = {}


def gather(records: Sequence[RunRecord], curves: Mapping[str, Sequence[float]]) -> PictureData:
    """Collect from the records what is drawn."""
    out = PictureData(curves={name: [round(t, 3) for t in times] for name, times in curves.items()})
    for record in records:
        for turn in record.turns:
            if taken := turn.speculation.get("accepted_by_position"):
                rounds, total = out.taken.get(record.who, (0, []))
                counts = [a + b for a, b in zip_longest(total, taken, fillvalue=0)]
                out.taken[record.who] = rounds + int(turn.speculation["rounds"]), counts
    return out


class Results(msgspec.Struct):
    """Everything that the page says and its pictures show, as `results.json` next to it.

    title, about: what was compared. tie: nats within which rounding was assumed to decide, on pages made before rounds were
    decoded again. differing: answers that differ from plain decoding's. notes: what was skipped, and why. command: the command
    line that made it. others: share of a processor above which an answer was timed again.
    """

    title: str
    command: str
    setup: Setup
    summaries: list[Summary]
    differences: list[Difference]
    tie: float = 0.0
    differing: int = 0
    about: str = ""
    notes: list[str] = []
    repeat: int = 1
    others: float = BOUND
    drawn: PictureData = msgspec.field(default_factory=PictureData)


def collect(
    records: Sequence[RunRecord], differences: Sequence[Difference], **more: Any
) -> Results:
    """Make results of figures; `more` are fields of `Results`. `records` must not be empty."""
    errors = {r.error: r.who for r in records if r.error}
    notes = [f"{who}: some questions were left out: {error}" for error, who in errors.items()]
    disturbed = sum(record.others > BOUND for record in records)
    if disturbed:
        notes.append(
            f"{disturbed} of {len(records)} answers were timed while other programs used the processor, each time again"
        )
    return Results(
        setup=records[-1].setup,
        summaries=summarise(records),
        differences=list(differences),
        differing=len(differences),
        repeat=1 + max(r.repeat for r in records),
        **{**more, "notes": [*more.get("notes", ()), *notes]},
    )


def page(results: Results, pictures: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    parts = [
        *([results.about] if results.about else []),
        _intro(results),
        "## Speed-up over plain decoding, by category",
        speed_table(results.summaries),
        *_against(results.summaries),
        "## What else was counted",
        detail_table(results.summaries),
        *_equality(results),
        *(["## Notes", "\n".join(f"- {note}" for note in results.notes)] if results.notes else []),
    ]
    return whole_page(results.title, parts, pictures, results.setup)


def save_page(results: Results, folder: Path) -> None:
    """Write `results.json` into a folder, with pictures and the page `README.md` made from it."""
    write_results(results, folder, "results.json", _pictures, page)


def write_results(
    results: R,
    folder: Path,
    name: str,
    pictures: Callable[[R], Mapping[str, Any]],
    page: Callable[[R, Sequence[str]], str],
) -> None:
    """Write results, their pictures by file name if they can be drawn, and the page `README.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(msgspec.json.encode(results) + b"\n")
    drawn = pictures(results) if can_draw() else {}
    for picture, figure in drawn.items():
        figure.savefig(
            folder / picture, metadata={"Date": None}
        )  # the same data give the same file
    (folder / "README.md").write_text(page(results, list(drawn)), encoding="utf-8")


def whole_page(title: str, parts: Sequence[str], pictures: Sequence[str], setup: Setup) -> str:
    """A Markdown page of these parts, with its pictures and setup."""
    shown = (f"![{name.rpartition('.')[0]}]({name})" for name in pictures)
    return "\n\n".join([f"# {title}", *parts, *shown, "## Setup", _setup(setup)]) + "\n"


def _intro(results: Results) -> str:
    counts = {s.questions for s in results.summaries}
    setup = results.setup
    return (
        f"Made by `{results.command}` on {setup.day}. {max(counts, default=0)} questions, "
        f"{setup.max_tokens} tokens an answer at most, temperature {setup.temperature:g}, "
        f"{results.repeat} run{'s' if results.repeat > 1 else ''} a question, every question "
        "answered in each mode before the next. A speed is tokens a second after the first token; "
        "a category's speed-up is the ratio of such speeds over all its questions; times are "
        f"medians over runs. An answer is timed again where others took more than {100 * results.others:.0f} % of a processor."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> str:
    """The same with one row per item; columns are given by their heads."""
    return table([*columns], [[show(item) for show in columns.values()] for item in items])


def speed_table(summaries: Sequence[Summary]) -> str:
    """Speed-ups by category, their geometric mean, and the total tokens per second."""
    names = [*dict.fromkeys(n for s in summaries for n in s.speeds if n != TOTAL)]
    return table_of(summaries, {
        "": lambda s: s.who,
        **{name: partial(_of, name=name) for name in names},
        "geo. mean": lambda s: f"{s.geomean:.2f}",
        "total": lambda s: _of(s, TOTAL),
        "tokens/s": lambda s: _of(s, TOTAL, "{0.rate:.1f}"),
    })  # fmt: skip


def _of(summary: Summary, name: str, form: str = "{0.speed_up:.2f}") -> str:
    """Format a speed; "-" if there is none."""
    speed = summary.speeds.get(name)
    return form.format(speed) if speed else "-"


def _against(summaries: Sequence[Summary]) -> list[str]:
    """Each mode over each peer, as geometric means."""
    others = [s for s in summaries if s.peer]
    own = [s for s in summaries if not s.peer]
    if not others or not own:
        return []
    rows = [[s.who, *(f"{ratio(s, other):.2f}" for other in others)] for s in own]
    text = "Geometric means over categories of a row's speed over a column's."
    return ["## Against the others", text, table(["", *(o.who for o in others)], rows)]


def ratio(one: Summary, other: Summary) -> float:
    """Geometric mean of one speed over the other, over the categories that both have; 0 for none."""
    names = [n for n in one.speeds if n != TOTAL and n in other.speeds]
    return geomean([one.speeds[n].speed_up / other.speeds[n].speed_up for n in names])


def detail_table(summaries: Sequence[Summary]) -> str:
    """Acceptance, length, relaxed share, first token, time outside decodes, and the spread of single questions' speed-ups."""
    return table_of(summaries, {
        "": lambda s: s.who,
        "accepted of verified": lambda s: _share(s.acceptance),
        "tokens a round": lambda s: "-" if s.mean_length is None else f"{s.mean_length:.2f}",
        "relaxed": lambda s: _share(s.relaxed),
        "first token ms": lambda s: f"{s.first_ms:.0f}",
        "whole answer s": lambda s: f"{s.answer_s:.2f}" if s.answer_s else "-",
        "outside decodes": lambda s: _share(s.other),
        "speed-up of a question, median (quartiles)":
            lambda s: _of(s, TOTAL, "{0.mid:.2f} ({0.low:.2f}-{0.high:.2f})"),
    })  # fmt: skip


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f} %"


_GREEDY = (
    "Greedy answers of strict modes and peers were compared with plain decoding's, token by token."
)
_DRAWN = (
    "Answers of strict modes were compared with plain decoding's, token by token: noise is coupled, so at a seed the text is the "
    "same whatever drafts, but for near-ties. Other programs draw their own numbers."
)
_NOT_COMPARED = "Nothing was compared: on this page texts at a temperature were not set beside plain decoding's."


def _equality(results: Results) -> list[str]:
    drawn = results.setup.temperature > 0.0
    text = _DRAWN if drawn else _GREEDY
    found = results.differences
    compared = sum(s.questions for s in results.summaries if s.exact and s.who != "plain")
    if not found and not compared:
        return [
            "## Equality",
            _NOT_COMPARED if drawn else "No mode was run whose text has to be plain decoding's.",
        ]
    if not found:
        return ["## Equality", f"{text} All were equal."]
    if drawn:
        text += f" {compared * results.repeat - results.differing} of {compared * results.repeat} were equal."
    known = [one for one in found if one.rounding is not None]
    if results.tie:
        text += f" Rounding was taken to decide where the target's two best tokens are within {results.tie:.2f} nats."
    elif known:
        text += (
            f" Where one of ours parts, both were decoded anew with as many rows in each decode: "
            f"{sum(bool(one.rounding) for one in known)} of {len(known)} times that made both choices again."
        )
    lines = "\n".join(f"- {difference}" for difference in found[:SHOWN])
    text = f"{text} Answers that part from it: {results.differing}. The first ones:"
    return ["## Equality", text, lines]


def code_of(commit: str) -> str:
    """Words for the commit of the code."""
    return f" at commit {commit}" if commit else ""


def _layers(setup: Setup) -> str:
    """How many layers run on which devices; old records do not name devices."""
    count = "all" if setup.gpu_layers < 0 else str(setup.gpu_layers)
    return f"{count} layers on {setup.devices or 'a GPU'}"


def _setup(setup: Setup) -> str:
    """The setup as a list."""
    where = ", ".join([f"{setup.threads} threads", _layers(setup), *filter(None, [setup.engine])])
    with_ = f"llama-cpp-python {setup.llama_cpp_python}, Python {setup.python}"
    lines = [
        f"- machine: {setup.machine}, {setup.system}; {where}",
        f"- pyspec {setup.pyspec}{code_of(setup.commit)}, {with_}; context {setup.n_ctx}, seed {setup.seed}",
        f"- questions: {setup.questions}",
    ]
    for role, file in setup.files.items():
        lines.append(f"- {role}: {file.name}, {file.size} bytes, sha256 {file.sha256}")
    return "\n".join(lines)


def _pictures(results: Results) -> dict[str, Any]:
    """All pictures that the data allow."""
    drawn = {"speed-up.svg": _speed_up(results.summaries)}
    if taken := results.drawn.taken:
        shares = {who: [n / rounds for n in counts] for who, (rounds, counts) in taken.items()}
        words = "accepted by position", "drafted token", "share of rounds"
        drawn["accepted-by-position.svg"] = draw_lines(*words, shares)
    if curves := results.drawn.curves:
        known = {name: times[1:] for name, times in curves.items()}
        drawn["cost.svg"] = draw_lines("cost of a decode", "rows", "ms", known)
        drawn["cost.svg"].axes[0].set_ylim(bottom=0.0)
    return drawn


def _speed_up(summaries: Sequence[Summary]) -> Any:
    """Bars of speed-up, grouped by category."""
    names = [*dict.fromkeys(n for s in summaries for n in s.speeds if n != TOTAL), TOTAL]
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
