"""What one answer did: its counts, where its time went, and its speed compared with plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import fmean
from typing import Any, NamedTuple

from pyspec.draft.costs import RowTimes
from pyspec.draft.simple import LengthPolicy


@dataclass(slots=True)
class Tally:
    """Counts of one answer."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0  # tokens proposed
    verified: int = 0  # of these, sent to the target
    accepted: int = 0  # of these, taken; relaxed ones included
    forced: int = 0  # accepted ones that a grammar drafted
    relaxed: int = 0
    relaxed_nats: float = 0.0
    plain_ms: float = 0.0  # time that decoding without drafts would have taken
    took_ms: float = 0.0  # time of the rounds for which plain_ms is known
    plain_error: float = 0.0  # standard error of plain_ms, ms
    target_ms: float = 0.0  # the target's decodes, which other answers may have shared
    rounds_by_length: Counter[int] = field(default_factory=Counter)  # by verified tokens
    accepted_by_position: list[int] = field(default_factory=list)  # rounds that took the i-th token

    def add(self, drafted: int, verified: int, accepted: int, emitted: int) -> None:
        self.tokens += emitted
        self.rounds += 1
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        self.rounds_by_length[verified] += 1
        taken = self.accepted_by_position
        taken += [0] * (accepted - len(taken))
        for i in range(accepted):
            taken[i] += 1

    def add_times(self, plain_ms: float, took_ms: float, error: float) -> None:
        """Add the time that plain decoding would have taken, and the time that this took. error: of plain_ms, as a share."""
        self.plain_ms += plain_ms
        self.took_ms += took_ms
        # one curve estimates all of them, so errors do not cancel
        self.plain_error += error * plain_ms

    def join(self, other: Tally) -> None:
        """Add another answer's counts, except those by length and position."""
        counts = ("tokens", "rounds", "drafted", "verified", "accepted", "forced", "relaxed")
        for name in (*counts, "relaxed_nats", "plain_ms", "took_ms", "plain_error"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def times_plain(self) -> float | None:
        """Speed as a multiple of plain decoding's; None if unknown."""
        return round(self.plain_ms / self.took_ms, 3) if self.took_ms else None

    def plain(self, rate: float) -> dict[str, float] | None:
        """The speed without drafts by the same estimate, with its error as a share; None if unknown. rate: with drafts."""
        if not self.plain_ms:
            return None
        speed, error = rate * self.took_ms / self.plain_ms, self.plain_error / self.plain_ms
        return {"tokens_per_second": round(speed, 2), "error": round(error, 4)}

    @property
    def mean_length(self) -> float:
        """Tokens emitted per round; 1 is plain decoding."""
        return self.tokens / self.rounds if self.rounds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The counts for the `speculation` block of a result."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "forced": self.forced,
            "relaxed": self.relaxed,
            "relaxed_nats": round(self.relaxed_nats, 4),
            "mean_length": round(self.mean_length, 3),
            "rounds_by_length": dict(sorted(self.rounds_by_length.items())),
            "accepted_by_position": list(self.accepted_by_position),
        }


@dataclass(frozen=True, slots=True)
class AnswerStatistics:
    """What one answer did. timings: in milliseconds, and tokens per second. away_ms: of these, taken by who read the tokens."""

    tally: Tally
    timings: Mapping[str, float]
    away_ms: float
    prompt_tokens: int
    prompt_kept: int

    def report(self, policy: LengthPolicy) -> dict[str, Any]:
        """Compare with plain decoding, and return the `speculation_report`. policy: the one that chose draft lengths."""
        policy.catch_up()
        timings, tally = self.timings, self.tally
        # plain decoding takes one row a token, at that token's depth
        ends = self.prompt_tokens, self.prompt_tokens + tally.tokens
        verifies = {n + 1: count for n, count in tally.rounds_by_length.items()}
        plain = plain_decode(policy.curve.target, 1, ends, verifies, tally.target_ms)
        if plain is not None and tally.tokens:
            ms = tally.tokens * (plain.ms + policy.plain_aside) + self.away_ms
            tally.add_times(ms, timings["total_ms"] - timings["prefill_ms"], plain.error)
        told = {name: round(number, 2) for name, number in timings.items()}
        return speculation_report(tally, (self.prompt_tokens, self.prompt_kept), told)


def speculation_report(
    tally: Tally, read: tuple[int, int], timings: Mapping[str, float]
) -> dict[str, Any]:
    """The part of a `speculation` block besides counts and rule.

    read: tokens of the prompt, and how many of them the context had already.
    """
    return {
        "prompt_tokens": read[0],
        "prompt_kept": read[1],
        "times_plain": tally.times_plain,
        "plain": tally.plain(timings["tokens_per_second"]),
        "timings": dict(timings),
    }


def times_among(begun: float, first: float, end: float, tokens: int) -> dict[str, float]:
    """Timings of an answer whose rounds served other answers too, from three moments in seconds; no breakdown is known."""
    return {
        "first_token_ms": round(1e3 * (first - begun), 2),
        "total_ms": round(1e3 * (end - begun), 2),
        "tokens_per_second": round(max(0, tokens - 1) / max(1e-6, end - first), 2),
    }


LARGEST_ERROR = 0.05
"""Largest standard error of plain decoding's time, as a share, with which anything is said about it."""


class PlainDecode(NamedTuple):
    """Time of a decode without drafts, in ms, and its standard error as a share."""

    ms: float
    error: float


def plain_decode(
    target: RowTimes, n: int, depths: Sequence[int], verifies: Mapping[int, int], spent_ms: float
) -> PlainDecode | None:
    """Estimate a decode of one row for each of n sequences; None if too little was measured.

    The curve gives the cost of rows at a depth (the mean of `depths`). The target's decodes took spent_ms for `verifies` (counts
    by rows); divided by the curve's time for these, that is how slow the machine was. So both sides of a speed-up come from the
    same minute, and where most decodes had n rows, the curve hardly matters.
    """
    tables = [target.table(depth, max([n, *verifies])) for depth in depths]
    times = {rows: fmean(table[rows] for table in tables) for rows in {n, *verifies}}
    expected = sum(count * times[rows] for rows, count in verifies.items())
    paced = bool(expected and spent_ms)
    shares = {r: count * times[r] / expected for r, count in verifies.items()} if paced else {}
    shares[n] = 1.0 - shares.get(n, 0.0)
    error = hypot(*(share * target.error(rows) for rows, share in shares.items() if share))
    if error > LARGEST_ERROR:
        return None
    return PlainDecode(times[n] * (spent_ms / expected if paced else 1.0), error)
