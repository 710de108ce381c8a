"""Whether a relaxed token that was confirmed costs anything measurable: the questions, and the page of the results.

    python bench/confirm.py questions build/confirm.jsonl [--spec-bench FILE]
    python bench/confirm.py plan bench/results/quality-eagle3/quality.json
    python bench/confirm.py store RUNS QUESTIONS bench/results/confirm/NAME.json --title TITLE [--judge MODEL] [--confirming RUNS]
    python bench/confirm.py page [FOLDER]

The answers come from `pyspec quality`, which resumes after an interruption. `store` keeps their figures, and has another model
read the answers if none has done so yet. `page` shows what is stored, and the gain above which each bound fails, there and on the
pages of `pyspec quality`. The plan was written before the answers: bench/results/confirm/plan.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyspec.measure.bounds import (
    BOUNDS,
    RuleTrial,
    by_halves,
    gain_of,
    losses_of,
    sentence,
    try_rule,
)
from pyspec.measure.chance import sample_size
from pyspec.measure.judging import TextJudge
from pyspec.measure.quality import WORSE_UP, Measure, QualityResults
from pyspec.measure.records import RunRecord, read_run_records
from pyspec.measure.report import code_of, table
from pyspec.measure.variants import parse_variants
from pyspec.profiling.questions import Question, grouped, load_questions
from pyspec.store.locate import resolve

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
SEEN = 1.96 + 0.84
"""A page's smallest detectable difference, in standard errors."""

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
        ROOT / "pyspec" / "profiling" / "questions.jsonl",
    ]
    for path in [*paths, *([spec_bench] if spec_bench else [])]:
        found += [json.loads(line) for line in path.read_text().splitlines()]
    short = [one for one in found if len(one["turns"][0]) <= SHORT]
    return [{**one, "question_id": i, "turns": one["turns"][:1]} for i, one in enumerate(short)]


def plan(path: Path) -> str:
    """Number of questions that each bound needs, given the spread between questions on a published page."""
    results = msgspec.json.decode(path.read_bytes(), type=QualityResults)
    rule = next(one for one in results.figures if one.who == "margin+fixed:4")
    rows = []
    for name, bound in BOUNDS.items():
        if name in rule.measures:
            over, n = rule.measures[name].over, rule.measures[name].questions
            spread = over.seen / SEEN * n**0.5
            rows.append([name, f"{bound:g}", f"{spread:.3f}", str(sample_size(spread, bound))])
    return table(["figure", "bound", "spread", "questions, confirming half"], rows)


class RuleFigures(msgspec.Struct):
    """What one rule gained and lost against the control. losses: by figure."""

    who: str
    gain: float
    relaxed: float
    losses: dict[str, LossFigures]


class LossFigures(msgspec.Struct):
    """Mean loss, upper end of its interval, questions with this figure, and how many questions a yes would need."""

    mean: float
    upper: float
    questions: int
    needed: int


class StoredRun(msgspec.Struct):
    """Figures of one pair's answers at one temperature.

    rules: on the questions that all of them answered; confirmed: the chosen one on the half that confirms. chosen: what the
    halves say; held: what Holm's method leaves of all rules.
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
    judge: str = ""
    confirmed: RuleFigures | None = None
    commit: str = ""


def stored(
    runs: Path, asked: Path, title: str, judge: str = "", confirming: Path | None = None
) -> StoredRun:
    """Figures of the answers so far.

    judge: a model that reads the answers, "" for none. confirming: more answers of the control and the chosen rule, to the half
    that confirms.
    """
    questions = load_questions(asked)
    by_id = {q.question_id: q for q in questions}
    every = read_run_records(runs) + (read_run_records(confirming) if confirming else [])
    if judge:
        judged(every, by_id, resolve(judge))
    groups = grouped(whole(every), lambda record: record.who)
    control, *others = groups
    trials = [
        try_rule(who, gain_of(groups[who], groups[control]), losses_of(groups[who], groups[control], by_id))
        for who in others
    ]  # fmt: skip
    worst = {t.who: max(loss.p for loss in t.losses.values()) for t in trials}
    found = by_halves(every, questions, parse_variants(",".join(groups)))
    asked_last = found.confirmed if found.confirmed and found.confirmed.losses else None
    setup = every[-1].setup
    return StoredRun(
        title, len(groups[control]), setup.max_tokens, setup.temperature, setup.day, control, sentence(found),
        ", ".join(sorted(holm(worst))) or "none", [_figures(t, _share(groups[t.who])) for t in trials],
        Path(judge).name, _figures(asked_last, 0.0) if asked_last else None, setup.commit,
    )  # fmt: skip


def _figures(trial: RuleTrial, relaxed: float) -> RuleFigures:
    losses = {
        n: LossFigures(x.mean, x.upper, x.questions, x.needed) for n, x in trial.losses.items()
    }
    return RuleFigures(trial.who, trial.gain, relaxed, losses)


def whole(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records of questions that every variant answered."""
    groups = grouped(records, lambda record: record.who).values()
    asked = set.intersection(*({r.question_id for r in group} for group in groups))
    return [r for r in records if r.question_id in asked]


def judged(records: Sequence[RunRecord], asked: Mapping[int | str, Question], model: Path) -> None:
    """Have a model read the answers; equal answers to a question are read once."""
    judge, known = TextJudge(model, n_ctx=1024, n_threads=1), {}
    for record in records:
        turn = record.turns[0]
        key = record.question_id, turn.text
        if key not in known:
            known[key] = judge.nats(asked[record.question_id], turn.text)
        turn.judged = known[key]
    judge.close()


def _share(records: list[RunRecord]) -> float:
    turns = [record.turns[0] for record in records]
    return float(sum(t.speculation["relaxed"] for t in turns) / sum(len(t.tokens) for t in turns))


# -- the page -----------------------------------------------------------------------------------------------------------


def published(path: Path) -> StoredRun:
    """The margin rules on a page of `pyspec quality` that answered all its questions; its intervals are of differences."""
    results = msgspec.json.decode(path.read_bytes(), type=QualityResults)
    rules = [
        RuleFigures(f.who, f.gain, f.relaxed, {n: _published(n, m) for n, m in f.measures.items() if n in BOUNDS})
        for f in results.figures
        if f.who.startswith("margin") and "+random" not in f.who and f.answers >= results.figures[0].answers
    ]  # fmt: skip
    setup, first, name = results.setup, results.figures[0], path.parent.name
    return StoredRun(
        f"[{name}](../{name}/README.md)", first.answers, setup.max_tokens, setup.temperature, setup.day, first.who,
        "", "", rules, commit=setup.commit,
    )  # fmt: skip


def _published(name: str, found: Measure) -> LossFigures:
    over, up = found.over, name in WORSE_UP
    spread = over.seen / SEEN * found.questions**0.5
    mean, upper = (over.mean, over.high) if up else (-over.mean, -over.low)
    return LossFigures(mean, upper, found.questions, sample_size(spread, BOUNDS[name]))


def frontier(runs: Sequence[StoredRun]) -> str:
    """For each pair, temperature and bound: the smallest gain at which a rule is not shown to be within the bound."""
    names = [n for n in BOUNDS if any(n in rule.losses for run in runs for rule in run.rules)]
    rows = [
        [run.title, f"{run.temperature:g}", str(run.questions), *(_fails_from(run, n) for n in names)]
        for run in runs
    ]  # fmt: skip
    return table(["", "T", "answers", *(f"{n} (bound {BOUNDS[n]:g})" for n in names)], rows)


def _fails_from(run: StoredRun, name: str) -> str:
    """The smallest gain of a rule that is not within a bound, by how much, and from which gain the mean itself is beyond it."""
    seen = sorted((rule.gain, rule.losses[name]) for rule in run.rules if name in rule.losses)
    failed = [(gain, loss) for gain, loss in seen if loss.upper > BOUNDS[name]]
    if not failed:
        return f"held up to {_percent(seen[-1][0])}" if seen else "-"
    gain, loss = failed[0]
    beyond = [each for each, found in seen if found.mean > BOUNDS[name]]
    mean = f"; the mean from {_percent(beyond[0])}" if beyond else "; the mean nowhere"
    return f"from {_percent(gain)}, by {loss.upper - BOUNDS[name]:.3f}{mean}"


def _percent(gain: float) -> str:
    return f"{100 * (gain - 1):+.1f} %"


def section(run: StoredRun) -> str:
    """One run's rules with all their losses, and how many questions would have been enough."""
    names = [n for n in BOUNDS if any(n in rule.losses for rule in run.rules)]
    rows = [
        [r.who, _percent(r.gain), f"{100 * r.relaxed:.1f} %", *(_loss(r.losses.get(n), n) for n in names)]
        for r in run.rules
    ]  # fmt: skip
    if (last := run.confirmed) is not None:
        shown = (_loss(last.losses.get(n), n) for n in names)
        asked = max(loss.questions for loss in last.losses.values())
        rows.append([f"{last.who}, {asked} of the other half", _percent(last.gain), "", *shown])
    needs = [[r.who, *(str(r.losses[n].needed) if n in r.losses else "-" for n in names)] for r in run.rules]  # fmt: skip
    heads = ["", "tokens a verify", "relaxed", *(f"{n} (bound {BOUNDS[n]:g})" for n in names)]
    by = f", judged by {run.judge}" if run.judge else ""
    how = f"{run.max_tokens} tokens at most{by}; {run.day}{code_of(run.commit)}"
    parts = [
        f"## {run.title}, temperature {run.temperature:g}",
        f"{run.questions} questions by {len(run.rules)} rules and {run.control}, {how}.",
        f"**{run.chosen}** Of all rules together, by Holm's method, within every bound: {run.held}.",
        table(heads, rows),
        "Questions that would show a rule to be within each bound four times of five, if it lost nothing:",
        table(["", *names], needs),
    ]
    return "\n\n".join(parts)


def _loss(loss: LossFigures | None, name: str) -> str:
    if loss is None:
        return "-"
    return f"{loss.mean:+.3f}, up to {loss.upper:+.3f}{'' if loss.upper <= BOUNDS[name] else ' !'}"


INTRO = """# Relaxed tokens that were confirmed

Made by `python bench/confirm.py page` from the runs in this folder and the pages of `pyspec quality`. [plan.md](plan.md) says
what was planned, and how far it was followed. Losses are relative to strict verification with as many drafts, paired by question.
Each is a mean, followed by the upper end of a 95 % bootstrap interval, which must be within the bound; `!` marks those that are
not.

## Where each bound begins to fail

For each draft and temperature: the gain in tokens a verify of the mildest rule that is not shown to be within the bound, and how
far the upper end is beyond it; then the gain from which the mean loss itself is beyond it. If only the upper end misses a bound,
the bound may hold: there were too few answers to tell."""


def page(folder: Path, quality: Iterable[Path]) -> str:
    """The whole page, from what is stored in a folder and on the pages of `pyspec quality`."""
    runs = [
        msgspec.json.decode(path.read_bytes(), type=StoredRun)
        for path in sorted(folder.glob("*.json"))
    ]
    every = [*runs, *map(published, sorted(quality))]
    return "\n\n".join([INTRO, frontier(every), *map(section, runs)]) + "\n"


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
    steps.add_parser("plan").add_argument("results", type=Path)
    store = steps.add_parser("store")
    for name in ("runs", "questions", "out"):
        store.add_argument(name, type=Path)
    store.add_argument("--title", required=True)
    store.add_argument("--judge", default="")
    store.add_argument("--confirming", type=Path)
    shown = steps.add_parser("page")
    shown.add_argument("folder", type=Path, nargs="?", default=RESULTS / "confirm")
    args = parser.parse_args(words)
    if args.step == "plan":
        print(plan(args.results))
    if args.step == "store":
        found = stored(args.runs, args.questions, args.title, args.judge, args.confirming)
        args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if args.step == "page":
        found = page(args.folder, RESULTS.glob("quality-*/quality.json"))
        (args.folder / "README.md").write_text(found)
    if args.step == "questions":
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(one) + "\n" for one in questions(args.spec_bench)))


if __name__ == "__main__":
    main()
