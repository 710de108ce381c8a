"""What small gaps of the margin rule bring and cost, with a confirming token and without: the questions, and the page.

    python bench/confirm.py questions build/confirm.jsonl [--spec-bench FILE]
    python bench/confirm.py store RUNS QUESTIONS bench/results/confirm/NAME.json --title TITLE
    python bench/confirm.py page [FOLDER]

The answers come from `bench/quality.py`, which resumes after an interruption; `store` keeps their figures, and `page` shows what
is stored. The plan was written before the answers: bench/results/confirm/plan.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from measure.bounds import (
    BOUNDS,
    RuleTrial,
    by_halves,
    gain_of,
    half_of,
    losses_of,
    sentence,
    try_rule,
)
from measure.chance import Interval
from measure.quality import NATS, gaps_of
from measure.quality_page import GAPS, gaps_cell
from measure.questions import grouped, load_questions
from measure.records import RunRecord, read_run_records
from measure.report import code_of, table
from measure.variants import parse_variants

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
SHORT = 400
"""Most characters of a question: long prompts cost much time and show nothing more."""


def sums(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Questions with small sums in words."""
    things = ("apples", "books", "coins", "stamps", "shells", "tickets", "eggs", "pencils")
    out = []
    for i in range(n):
        a, b, what = rng.randint(3, 40), rng.randint(3, 40), things[i % len(things)]
        asked, value = (
            (f"Anna has {a} {what} and gets {b} more. How many {what} has she now?", a + b)
            if i % 2
            else (
                f"A box holds {a + b} {what}. {b} of them are taken out. How many are left?",
                a,
            )
        )
        turns = [f"{asked} End your answer with the number."]
        out.append(
            {"turns": turns, "check": [{"kind": "number", "value": value}], "category": "sums"}
        )
    return out


def lists(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Questions for lists with a given number of items."""
    what = (
        "things to pack for a weekend in the mountains", "animals that live in the sea", "uses for an old newspaper",
        "questions to ask before renting a flat", "ways to save water at home", "names for a grey cat",
        "reasons to learn a second language", "games that need no material", "dishes with potatoes",
        "jobs that are done at night", "sounds of a harbour", "rules for a shared kitchen",
    )  # fmt: skip
    out = []
    for i in range(n):
        items = rng.randint(3, 6)
        turns = [f"List exactly {items} {what[i % len(what)]}, one a line, numbered."]
        out.append({"turns": turns, "check": [{"kind": "list", "n": items}], "category": "lists"})
    return out


def extractions(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Questions for facts from a sentence, as JSON."""
    names, towns = (
        ("Mara", "Jonas", "Leila", "Tomas", "Ines", "Viktor"),
        ("Porto", "Graz", "Lyon", "Turku", "Bergen"),
    )
    out = []
    for _ in range(n):
        name, town, age = rng.choice(names), rng.choice(towns), rng.randint(19, 80)
        text = f"{name}, who is {age}, moved to {town} last year and works in a bakery there."
        turns = [
            f"{text}\nGive name, age and town as a JSON object with the keys name, age and town, and nothing else."
        ]
        wanted = [{"kind": "json", "keys": ["name", "age", "town"]}]
        out.append({"turns": turns, "check": wanted, "category": "extraction"})
    return out


def questions(spec_bench: Path | None) -> list[dict[str, Any]]:
    """Short questions: generated ones that a program checks, everyday ones, the shipped set, and Spec-Bench's if given."""
    rng = random.Random(33)  # noqa: S311 - reproducible, not secret
    found = [*sums(rng, 48), *lists(rng, 48), *extractions(rng, 48)]
    paths = [
        ROOT / "bench" / "firsts" / "questions.jsonl",
        ROOT / "bench" / "measure" / "questions.jsonl",
    ]
    for path in [*paths, *([spec_bench] if spec_bench else [])]:
        found += [json.loads(line) for line in path.read_text().splitlines()]
    short = [one for one in found if len(one["turns"][0]) <= SHORT]
    return [{**one, "question_id": i, "turns": one["turns"][:1]} for i, one in enumerate(short)]


class LossFigures(msgspec.Struct):
    """Mean loss, upper end of its interval, questions with this figure, and how many questions a yes would need."""

    mean: float
    upper: float
    questions: int
    needed: int


class RuleFigures(msgspec.Struct):
    """What one rule gained and lost against the control.

    gain: tokens a verify over the control's; between: the ends of its interval. losses: by figure. gaps: their sum a token.
    """

    who: str
    gain: float
    relaxed: float
    losses: dict[str, LossFigures]
    between: tuple[float, float]
    gaps: Interval | None


class StoredRun(msgspec.Struct):
    """Figures of one pair's answers at one temperature, to the questions that all rules answered.

    chosen: what the halves say; held: what Holm's method leaves of all rules; confirmed: the chosen rule on the other half.
    """

    title: str
    questions: int
    max_tokens: int
    temperature: float
    day: str
    control: str
    chosen: str
    held: str
    rules: list[RuleFigures]
    confirmed: RuleFigures | None = None
    commit: str = ""


def stored(runs: Path, asked: Path, title: str) -> StoredRun:
    """Figures of the answers so far."""
    questions = load_questions(asked)
    by_id = {q.question_id: q for q in questions}
    records = whole(read_run_records(runs))
    groups = grouped(records, lambda record: record.who)
    control, *rules = groups
    trials = [
        try_rule(who, gain_of(groups[who], groups[control]), losses_of(groups[who], groups[control], by_id))
        for who in rules
    ]  # fmt: skip
    found = by_halves(records, questions, parse_variants(",".join(groups)))
    worst = {t.who: max(loss.p for loss in t.losses.values()) for t in trials}
    figures = [_figures(trial, groups[trial.who], groups[control]) for trial in trials]
    last = None
    if (asked_last := found.confirmed) is not None and asked_last.losses:
        halves = [second_half(groups[who]) for who in (asked_last.who, control)]
        last = _figures(asked_last, *halves)
    setup = records[-1].setup
    return StoredRun(
        title, len(groups[control]), setup.max_tokens, setup.temperature, setup.day, control, sentence(found),
        ", ".join(sorted(holm(worst))) or "none", figures, last, setup.commit,
    )  # fmt: skip


def _figures(
    trial: RuleTrial, own: Sequence[RunRecord], control: Sequence[RunRecord]
) -> RuleFigures:
    losses = {
        n: LossFigures(x.mean, x.upper, x.questions, x.needed) for n, x in trial.losses.items()
    }
    between = gain_between(own, control)
    return RuleFigures(trial.who, trial.gain, _share(own), losses, between, gaps_of(own))


def whole(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records of questions that every variant answered."""
    groups = grouped(records, lambda record: record.who).values()
    asked = set.intersection(*({r.question_id for r in group} for group in groups))
    return [r for r in records if r.question_id in asked]


def second_half(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records of the half that confirms."""
    return [r for r in records if half_of(r.question_id) == 1]


def gain_between(own: Sequence[RunRecord], control: Sequence[RunRecord]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the gain in tokens a verify, over questions that both answered."""
    counts = np.array([_counts(own), _counts(control)])  # [2, questions, 2]
    n = counts.shape[1]
    drawn = counts[:, np.random.default_rng(0).integers(0, n, (2000, n))].sum(axis=2)
    lengths = drawn[..., 0] / drawn[..., 1]
    low, high = np.percentile(lengths[0] / lengths[1], (2.5, 97.5))
    return float(low), float(high)


def _counts(records: Sequence[RunRecord]) -> list[tuple[int, int]]:
    """Tokens and rounds of each answer, in the questions' order."""
    turns = [r.turns[0] for r in sorted(records, key=lambda record: str(record.question_id))]
    return [(len(turn.tokens), int(turn.speculation["rounds"])) for turn in turns]


def _share(records: Sequence[RunRecord]) -> float:
    turns = [record.turns[0] for record in records]
    return float(sum(t.speculation["relaxed"] for t in turns) / sum(len(t.tokens) for t in turns))


# -- the page -----------------------------------------------------------------------------------------------------------


def section(run: StoredRun) -> str:
    """One run's rules with all their losses, and how many questions would have been enough."""
    found = [n for n in BOUNDS if any(n in rule.losses for rule in run.rules)]
    names = sorted(found, key=lambda name: name != NATS)  # beside the gaps
    rows = [_line(rule, rule.who, names) for rule in run.rules]
    if (last := run.confirmed) is not None:
        asked = max(loss.questions for loss in last.losses.values())
        rows.append(_line(last, f"{last.who}, {asked} of the other half", names))
    needs = [[r.who, *(str(r.losses[n].needed) if n in r.losses else "-" for n in names)] for r in run.rules]  # fmt: skip
    heads = ["", "tokens a verify", "relaxed", GAPS, *(f"{n} (bound {BOUNDS[n]:g})" for n in names)]
    how = f"{run.max_tokens} tokens at most; {run.day}{code_of(run.commit)}"
    parts = [
        f"## {run.title}, temperature {run.temperature:g}",
        f"{run.questions} questions by {len(run.rules)} rules and {run.control}, {how}.",
        f"**{run.chosen}** Of all rules together, by Holm's method, within every bound: {run.held}.",
        table(heads, rows),
        "Questions that would show a rule to be within each bound four times of five, if it lost nothing:",
        table(["", *names], needs),
    ]
    return "\n\n".join(parts)


def _line(rule: RuleFigures, name: str, names: Sequence[str]) -> list[str]:
    losses = (_loss(rule.losses.get(n), n) for n in names)
    return [name, gain_cell(rule), f"{100 * rule.relaxed:.1f} %", gaps_cell(rule.gaps), *losses]


def gain_cell(rule: RuleFigures) -> str:
    """The gain in tokens a verify with its interval."""
    low, gain, high = (100 * (end - 1) for end in (rule.between[0], rule.gain, rule.between[1]))
    return f"{gain:+.1f} % ({low:+.1f} to {high:+.1f})"


def _loss(loss: LossFigures | None, name: str) -> str:
    if loss is None:
        return "-"
    beyond = loss.upper - BOUNDS[name]
    told = f"{loss.mean:+.3f}, up to {loss.upper:+.3f}"
    return f"{told}, **{beyond:.3f} beyond**" if beyond > 0 else told


def overview(runs: Sequence[StoredRun]) -> str:
    """What each rule gained and spent on each draft at each temperature."""
    rules = list(dict.fromkeys(rule.who for run in runs for rule in run.rules))
    rows = []
    for who in rules:
        found = [next((rule for rule in run.rules if rule.who == who), None) for run in runs]
        rows.append([who, *(f"{gain_cell(one)}; {gaps_cell(one.gaps)}" if one else "-" for one in found)])  # fmt: skip
    heads = (f"{run.title}, T {run.temperature:g}, {run.questions} questions" for run in runs)
    return table(["", *heads], rows)


INTRO = """# Small gaps of the margin rule, confirmed and not

Made by `python bench/confirm.py page` from the runs in this folder. [plan.md](plan.md) says what was planned before the first
answer. Gains and losses are relative to strict verification with as many drafts, paired by question, with 95 % bootstrap
intervals over questions. The upper end of a loss must be within the bound; where it is not, the table says by how much it is
beyond. Gaps a token is the sum of relaxed tokens' gaps over an answer's tokens, in nats, with the noise in them above temperature
0. It is what the rule itself adds to the nats a token: a lower estimate, for which far fewer answers are enough.

## Gain in tokens a verify, and gaps a token"""


def runs_in(folder: Path) -> dict[str, StoredRun]:
    """What is stored in a folder, by name."""
    paths = sorted(folder.glob("*.json"))
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=StoredRun) for path in paths}


def page(runs: Sequence[StoredRun]) -> str:
    """The whole page."""
    return "\n\n".join([INTRO, overview(runs), *map(section, runs)]) + "\n"


def write(folder: Path) -> None:
    """Write the page of a folder."""
    found = page(list(runs_in(folder).values()))
    (folder / "README.md").write_text(found, encoding="utf-8")


def figures(folder: Path) -> dict[str, str]:
    """What a text may quote of the runs in a folder, by run, rule and figure; needed: by the bound that needs most."""
    found: dict[str, str] = {}
    for name, run in runs_in(folder).items():
        found[f"{name}/questions"] = str(run.questions)
        for rule in run.rules:
            who, needed = f"{name}/{rule.who}", max(x.needed for x in rule.losses.values())
            found |= {f"{who}/gain": gain_cell(rule), f"{who}/gaps": gaps_cell(rule.gaps)}
            found[f"{who}/needed"] = str(needed)
    return found


def holm(p: Mapping[str, float], level: float = 0.05) -> set[str]:
    """The claims that hold together at a level (Holm 1979): the smallest p is compared with level / n, and so on."""
    held: set[str] = set()
    for i, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        if value > level / (len(p) - i):
            break
        held.add(name)
    return held


def main(words: Sequence[str] | None = None) -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("questions")
    make.add_argument("out", type=Path)
    make.add_argument("--spec-bench", type=Path)
    store = steps.add_parser("store")
    for name in ("runs", "questions", "out"):
        store.add_argument(name, type=Path)
    store.add_argument("--title", required=True)
    shown = steps.add_parser("page")
    shown.add_argument("folder", type=Path, nargs="?", default=RESULTS / "confirm")
    args = parser.parse_args(words)
    if args.step == "store":
        found = stored(args.runs, args.questions, args.title)
        args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if args.step == "page":
        write(args.folder)
    if args.step == "questions":
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(one) + "\n" for one in questions(args.spec_bench)))


if __name__ == "__main__":
    main()
