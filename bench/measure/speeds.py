"""Computes from records how fast modes and peers were: by category, in total, and by question."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import geometric_mean, median

import msgspec
import numpy as np

from .questions import grouped
from .records import RunRecord, TimedAnswer

TOTAL = "total"


class Speed(msgspec.Struct):
    """A mode or peer on one category, or on all.

    rate: tokens per second after the first token, over all questions, with median times over repeats. speed_up: rate over plain
    decoding's. low, mid, high: quartiles and median of the single questions' speed-ups.
    """

    rate: float
    speed_up: float
    low: float
    mid: float
    high: float


class Summary(msgspec.Struct):
    """A mode or peer over all questions. geomean: of the categories' speed-ups.

    answer_s: mean seconds of a whole answer, prompt included. ratios: single questions' speed-ups, by category; missing in older
    results. other: share of the generation's time outside llama.cpp's decodes, None for peers.
    """

    who: str
    peer: bool
    exact: bool
    questions: int
    speeds: dict[str, Speed]
    geomean: float
    first_ms: float
    acceptance: float | None = None
    mean_length: float | None = None
    relaxed: float | None = None
    other: float | None = None
    answer_s: float = 0.0
    ratios: dict[str, list[float]] = {}

    @property
    def logs(self) -> list[float]:
        """Logarithms of the questions' speed-ups."""
        return [log(up) for ups in self.ratios.values() for up in ups if up > 0.0]


def geomean(values: Sequence[float]) -> float:
    """Geometric mean; 0 if a value is not positive or there is none."""
    return geometric_mean(values) if values and min(values) > 0.0 else 0.0


_Cost = tuple[str, float, float]
"""A question's category, its tokens after the first ones, and their seconds."""


def _costs(records: Sequence[RunRecord]) -> dict[int | str, _Cost]:
    """Costs by question: medians over repeats, without failed records."""
    whole = [record for record in records if not record.error]
    out = {}
    for question, group in grouped(whole, lambda record: record.question_id).items():
        tokens = median(sum(max(0, len(t.tokens) - 1) for t in r.turns) for r in group)
        seconds = median(sum(t.decode_s for t in r.turns) for r in group)
        if tokens > 0 and seconds > 0:
            out[question] = group[0].category, tokens, seconds
    return out


def _compare(
    own: dict[int | str, _Cost], base: dict[int | str, _Cost]
) -> tuple[dict[str, Speed], dict[str, list[float]]]:
    """Speeds by category and in total, on the questions that both answered, and each of these's own speed-up, by category."""
    both = [question for question in own if question in base]
    ups = {q: _rate([own[q]]) / _rate([base[q]]) for q in both}
    groups, found = grouped(both, lambda q: own[q][0]), {}
    for name, group in [*groups.items(), *([(TOTAL, both)] if both else [])]:
        rate, plain = _rate([own[q] for q in group]), _rate([base[q] for q in group])
        quartiles = np.percentile([ups[q] for q in group], (25, 50, 75))
        found[name] = Speed(rate, rate / plain, *map(float, quartiles))
    return found, {name: [round(ups[q], 4) for q in group] for name, group in groups.items()}


def _rate(group: Sequence[_Cost]) -> float:
    return sum(tokens for _, tokens, _ in group) / sum(seconds for *_, seconds in group)


def summarise(records: Sequence[RunRecord]) -> list[Summary]:
    """One summary per mode and peer, in file order; speed-ups are against plain, or against the first if plain is missing."""
    by_who = grouped(records, lambda record: record.who)
    own = {who: _costs(group) for who, group in by_who.items()}
    against = own.get("plain") or next(iter(own.values()), {})
    whole = [who for who in by_who if own[who]]
    return [_summary(who, by_who[who], own[who], against) for who in whole]


def _summary(
    who: str,
    records: Sequence[RunRecord],
    own: dict[int | str, _Cost],
    base: dict[int | str, _Cost],
) -> Summary:
    speeds, ratios = _compare(own, base)
    turns = [turn for record in records if not record.error for turn in record.turns]
    rounds = _sum(turns, "rounds")
    verified, emitted = _sum(turns, "verified"), sum(len(turn.tokens) for turn in turns)
    timings = [t.speculation["timings"] for t in turns if "timings" in t.speculation]
    spent = sum(x["total_ms"] for x in timings)
    # later turns have most of their prompt read already: compare first tokens of first turns
    first = [r.turns[0].first_s for r in records if r.turns and not r.error]
    return Summary(
        who,
        records[0].peer,
        records[0].exact,
        len({r.question_id for r in records if not r.error}),
        speeds,
        geomean([s.speed_up for name, s in speeds.items() if name != TOTAL]),
        1e3 * median(first) if first else 0.0,
        acceptance=_sum(turns, "accepted") / verified if verified else None,
        mean_length=emitted / rounds if rounds else None,
        relaxed=_sum(turns, "relaxed") / emitted if rounds and emitted else None,
        other=sum(x["other_ms"] for x in timings) / spent if spent else None,
        answer_s=sum(turn.total_s for turn in turns) / max(1, len(turns)),
        ratios=ratios,
    )


def _sum(turns: Sequence[TimedAnswer], name: str) -> int:
    return sum(int(turn.speculation.get(name, 0)) for turn in turns)
