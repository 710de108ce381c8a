"""Whether a relaxed token that was confirmed costs nothing that can be seen: questions, and the page of what was answered.

    python bench/confirm.py questions build/confirm.jsonl [--spec-bench FILE]
    python bench/confirm.py plan bench/results/quality-eagle3/quality.json
    python bench/confirm.py page RUNS QUESTIONS OUT [--judge GGUF]

Answers come from `pyspec quality`, which goes on where it was interrupted. The plan, written before the answers, is
bench/results/confirm/plan.md.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("questions")
    make.add_argument("out", type=Path)
    make.add_argument("--spec-bench", type=Path)
    args = parser.parse_args()
    if args.step == "questions":
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(one) + "\n" for one in questions(args.spec_bench)))


if __name__ == "__main__":
    main()
