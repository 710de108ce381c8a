"""Whether a relaxed token that was confirmed costs nothing that can be seen: questions, and the page of what was answered.

    python bench/confirm.py questions build/confirm.jsonl [--spec-bench FILE]
    python bench/confirm.py plan bench/results/quality-eagle3/quality.json
    python bench/confirm.py page RUNS QUESTIONS OUT

Answers come from `pyspec quality`, which goes on where it was interrupted. The plan, written before the answers, is
bench/results/confirm/plan.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyspec.measure.bounds import (
    BOUNDS,
    Loss,
    by_halves,
    gain_of,
    losses_of,
    sentence,
    try_rule,
)
from pyspec.measure.chance import holm, sample_size
from pyspec.measure.quality import QualityResults
from pyspec.measure.records import RunRecord
from pyspec.measure.report import table
from pyspec.measure.tasks import grouped, load_questions
from pyspec.measure.variants import parse_variants

ROOT = Path(__file__).parent.parent
SHORT = 400
"""Characters of a question that is asked: long prompts cost much of a run and say nothing else."""


def sums(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Small sums in words."""
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
    """Lists of so many items."""
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
    """Facts out of a sentence, as JSON."""
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
    """Short questions: made ones that a program checks, everyday ones, the shipped set, and of Spec-Bench what is there."""
    rng = random.Random(33)  # noqa: S311 - reproducible, not secret
    found = [*sums(rng, 48), *lists(rng, 48), *extractions(rng, 48)]
    paths = [
        ROOT / "bench" / "firsts" / "questions.jsonl",
        ROOT / "pyspec" / "measure" / "questions.jsonl",
    ]
    for path in [*paths, *([spec_bench] if spec_bench else [])]:
        found += [json.loads(line) for line in path.read_text().splitlines()]
    short = [one for one in found if len(one["turns"][0]) <= SHORT]
    return [{**one, "question_id": i, "turns": one["turns"][:1]} for i, one in enumerate(short)]


def plan(path: Path) -> str:
    """Questions that each bound needs, by the spread that a published page had between questions."""
    results = msgspec.json.decode(path.read_bytes(), type=QualityResults)
    rule = next(one for one in results.figures if one.who == "margin+fixed:4")
    rows = []
    for name, bound in BOUNDS.items():
        if name in rule.measures:
            over, n = rule.measures[name].over, rule.measures[name].questions
            spread = over.seen / 2.8 * n**0.5  # seen is (1.96 + 0.84) standard errors
            rows.append([name, f"{bound:g}", f"{spread:.3f}", str(sample_size(spread, bound))])
    return table(["figure", "bound", "spread", "questions, confirming half"], rows)


def page(runs: Path, asked: Path) -> str:
    """What was answered so far, rule by rule over all questions, and what the halves say."""
    decoder = msgspec.json.Decoder(RunRecord)
    records = [decoder.decode(line) for line in runs.read_bytes().splitlines() if b'"who"' in line]
    groups = grouped(records, lambda record: record.who)
    whole = set.intersection(*({r.question_id for r in group} for group in groups.values()))
    records = [r for r in records if r.question_id in whole]
    groups = grouped(records, lambda record: record.who)
    questions = load_questions(asked)
    by_id = {q.question_id: q for q in questions}
    control, *others = groups
    trials = [
        try_rule(who, gain_of(groups[who], groups[control]), losses_of(groups[who], groups[control], by_id))
        for who in others
    ]  # fmt: skip
    names = list(trials[0].losses)
    rows = [
        [
            t.who,
            f"{100 * (t.gain - 1):+.1f} %",
            _share(groups[t.who]),
            *(_loss(t.losses[n]) for n in names),
        ]
        for t in trials
    ]
    shown = table(
        ["", "tokens a verify", "relaxed", *(f"{n} (bound {BOUNDS[n]:g})" for n in names)], rows
    )
    needs = [[t.who, *(str(t.losses[n].needed) for n in names)] for t in trials]
    worst = {t.who: max(loss.p for loss in t.losses.values()) for t in trials}
    held = ", ".join(sorted(holm(worst))) or "none"
    found = by_halves(records, questions, parse_variants(",".join(groups)))
    setup = records[-1].setup
    intro = (
        f"Made by `python bench/confirm.py page` from {len(records)} answers, {len(whole)} questions by {len(groups)} variants, "
        f"at most {setup.max_tokens} tokens, temperature {setup.temperature:g}, with the EAGLE-3 head and lookup on the default "
        f"target ({setup.day}). What was planned, and how far it was followed: [plan.md](plan.md). Losses are against {control}, "
        "paired by question: the mean, and behind it the upper end of a 95 % bootstrap interval, which has to be within the "
        "bound; `!` where it is not."
    )
    said = f"**{sentence(found)}** Of all rules together, by Holm's method, within every bound: {held}."
    about = "Questions that would show a rule to be within each bound four times of five, if it lost nothing:"
    parts = [
        "# Relaxed tokens that were confirmed",
        intro,
        said,
        shown,
        about,
        table(["", *names], needs),
    ]
    return "\n\n".join(parts) + "\n"


def _share(records: list[RunRecord]) -> str:
    turns = [record.turns[0] for record in records]
    share = sum(t.speculation["relaxed"] for t in turns) / sum(len(t.tokens) for t in turns)
    return f"{100 * share:.1f} %"


def _loss(loss: Loss) -> str:
    return f"{loss.mean:+.3f}, up to {loss.upper:+.3f}{'' if loss.holds else ' !'}"


def main(words: Sequence[str] | None = None) -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("questions")
    make.add_argument("out", type=Path)
    make.add_argument("--spec-bench", type=Path)
    steps.add_parser("plan").add_argument("results", type=Path)
    shown = steps.add_parser("page")
    for name in ("runs", "questions", "out"):
        shown.add_argument(name, type=Path)
    args = parser.parse_args(words)
    if args.step == "plan":
        print(plan(args.results))
    if args.step == "page":
        args.out.write_text(page(args.runs, args.questions))
    if args.step == "questions":
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(one) + "\n" for one in questions(args.spec_bench)))


if __name__ == "__main__":
    main()
