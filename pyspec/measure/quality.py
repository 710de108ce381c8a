"""What a gate costs: the same questions under each rule, against strict.

Nats are of the emitted tokens under the target, by teacher forcing, so every rule is judged by one
standard; strict's answers are the target's own greedy ones.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from pyspec.drafters.lookup import SuffixIndex
from pyspec.measure.checks import check
from pyspec.measure.equal import nats_of, rows_after
from pyspec.measure.setup import Setup
from pyspec.measure.stats import TOTAL, Summary, paired, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspec.llama import SpeculativeLlama
    from pyspec.measure.questions import Question
    from pyspec.measure.records import Record, Turn

BASE = "strict"
GATES = (
    "plain,strict,margin/gap=0.5,margin,margin/gap=2.5,margin/gap=inf,"
    "margin/gap=inf/theta=0.84,margin/gap=inf/theta=0.87,margin/gap=inf/theta=0.93,"
    "margin/gap=inf/theta=0.96,margin/gap=inf/theta=0.98,"
    "margin/budget=2,margin/budget=8,margin/gap=2.5/budget=8"
)
"""What `pyspec quality` compares unless told otherwise; `margin` is the default gate."""

NATS_BOUND, DISTINCT_BOUND = 0.02, 0.01


class Interval(msgspec.Struct):
    """Mean difference from strict over questions, and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class Gate(msgspec.Struct):
    """One rule's figures.

    `_over` fields are differences from strict. checks: by kind, passed and asked; worse: kinds
    whose interval lies below 0; supported: whether the bounds of the project hold.
    """

    who: str
    speed_up: float
    nats: float
    nats_over: Interval
    relaxed: float
    distinct: float
    distinct_over: Interval
    longest_repeat: float
    tokens: float
    endings: dict[str, int]
    checks: dict[str, tuple[int, int]]
    checks_over: dict[str, Interval]
    supported: bool

    @property
    def worse(self) -> list[str]:
        """Kinds of checks that this rule fails more often, beyond chance."""
        return [kind for kind, interval in self.checks_over.items() if interval.high < 0.0]


def distinct_4(tokens: Sequence[int]) -> float:
    """Share of 4-grams that are different ones; 1 where there are none."""
    grams = list(zip(*(tokens[i:] for i in range(4)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def longest_repeat(tokens: Sequence[int]) -> int:
    """Length of the longest run of tokens that stands in the answer twice."""
    index, longest = SuffixIndex(), 0
    for token in tokens:
        index.extend(token)
        longest = max(longest, index.match[0])
    return longest


def judge(llm: SpeculativeLlama) -> Callable[[Turn, Question, int, Sequence[int]], None]:
    """What fills in a turn's nats and its check, for a `Runner`."""

    def fill(turn: Turn, question: Question, number: int, prompt: Sequence[int]) -> None:
        rows = rows_after(llm, prompt, turn.tokens)
        turn.nats = [
            round(nats_of(row, token), 5) for row, token in zip(rows, turn.tokens, strict=True)
        ]
        what = question.check_of(number)
        turn.check = check(what, turn.text) if what is not None else None

    return fill


def gates(records: Sequence[Record], questions: Sequence[Question]) -> list[Gate]:
    """Figures of every rule in the records, strict first where it is there."""
    kinds = {q.question_id: [c.get("kind", "") if c else "" for c in q.check] for q in questions}
    by_who: dict[str, list[Record]] = {}
    for record in records:
        if not record.error and record.turns:
            by_who.setdefault(record.who, []).append(record)
    speeds = {summary.who: summary for summary in summarise(records)}
    base = by_who.get(BASE, [])
    return [_gate(group, base, speeds[who], kinds) for who, group in by_who.items()]


def _gate(
    group: Sequence[Record],
    base: Sequence[Record],
    summary: Summary,
    kinds: dict[int | str, list[str]],
) -> Gate:
    turns = [turn for record in group for turn in record.turns]
    nats = [n for turn in turns for n in turn.nats]
    own_checks, base_checks = _checks(group, kinds), _checks(base, kinds)
    names = sorted({kind for kind, _ in own_checks})
    gate = Gate(
        who=group[0].who,
        speed_up=summary.speeds[TOTAL].speed_up,
        nats=sum(nats) / len(nats) if nats else 0.0,
        nats_over=_over(_each(group, _nats), _each(base, _nats)),
        relaxed=summary.relaxed or 0.0,
        distinct=_mean([distinct_4(turn.tokens) for turn in turns]),
        distinct_over=_over(_each(group, _distinct), _each(base, _distinct)),
        longest_repeat=_mean([float(longest_repeat(turn.tokens)) for turn in turns]),
        tokens=_mean([float(len(turn.tokens)) for turn in turns]),
        endings=dict(Counter(turn.finish for turn in turns)),
        checks={kind: _passed(own_checks, kind) for kind in names},
        checks_over={kind: _over(_of(own_checks, kind), _of(base_checks, kind)) for kind in names},
        supported=True,
    )
    gate.supported = (
        gate.nats_over.mean <= NATS_BOUND
        and gate.distinct_over.mean >= -DISTINCT_BOUND
        and not gate.worse
    )
    return gate


_Checks = dict[tuple[str, "int | str"], list[bool]]


def _checks(group: Sequence[Record], kinds: dict[int | str, list[str]]) -> _Checks:
    out: _Checks = {}
    for record in group:
        names = kinds.get(record.question_id, [])
        for turn, kind in zip(record.turns, names, strict=False):
            if turn.check is not None:
                out.setdefault((kind, record.question_id), []).append(turn.check)
    return out


def _passed(checks: _Checks, kind: str) -> tuple[int, int]:
    results = [r for (k, _), group in checks.items() if k == kind for r in group]
    return sum(results), len(results)


def _of(checks: _Checks, kind: str) -> dict[int | str, float]:
    return {q: sum(r) / len(r) for (k, q), r in checks.items() if k == kind}


def _each(group: Sequence[Record], figure: Callable[[Record], float]) -> dict[int | str, float]:
    """One figure a question, the mean over repeats."""
    values: dict[int | str, list[float]] = {}
    for record in group:
        values.setdefault(record.question_id, []).append(figure(record))
    return {question: _mean(found) for question, found in values.items()}


def _nats(record: Record) -> float:
    return _mean([n for turn in record.turns for n in turn.nats])


def _distinct(record: Record) -> float:
    return _mean([distinct_4(turn.tokens) for turn in record.turns])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _over(own: dict[int | str, float], base: dict[int | str, float]) -> Interval:
    return Interval(*paired(own, base))


def verdict(found: Sequence[Gate]) -> str:
    """Which gate the data support, in one or two sentences."""
    margins = [gate for gate in found if "margin" in gate.who]
    fine = [gate for gate in margins if gate.supported]
    if not margins:
        return "No margin rule was measured."
    if not fine:
        return "No margin rule keeps within the bounds; the data support strict as the default."
    best = max(fine, key=lambda gate: gate.speed_up)
    own = next((gate for gate in margins if "margin" in gate.who.split("+")), None)
    said = f"The fastest gate within the bounds is {best.who} ({best.speed_up:.2f} times plain)."
    if own is None or own is best:
        return said
    state = "is within them" if own.supported else "is NOT within them"
    return f"{said} The default gate ({own.who}, {own.speed_up:.2f} times) {state}."


class QualityResults(msgspec.Struct):
    """Everything the quality page says, as `quality.json` next to it."""

    command: str
    setup: Setup
    gates: list[Gate]
    verdict: str
