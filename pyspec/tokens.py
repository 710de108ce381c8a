"""What a generation emits and what it did: tokens in steps of one round each, counts, and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec


class Source(IntEnum):
    """Where an emitted token came from; the values are the extension's."""

    TARGET = 0
    ACCEPTED = 1
    RELAXED = 2

    @property
    def label(self) -> str:
        """The name in results: target, accepted or relaxed."""
        return self.name.lower()


class Token(msgspec.Struct, frozen=True):
    """One emitted token.

    id: vocabulary id.
    source: the target's own choice, a drafted token it chose too, or a drafted runner-up.
    gap: for a relaxed token, how much the target preferred its own choice, in nats; 0 otherwise.
    preferred: the target's own choice at this place; differs from `id` only for a relaxed token.
    confirmed: for a relaxed token of a rule that asks for it, what confirmed it: under `confirm` how many tokens after it
        were the target's own choices, under `kl` nats, under `doubt` a ratio; else None.
    """

    id: int
    source: Source
    gap: float
    preferred: int
    confirmed: dict[str, float] | None = None


def targets_own(ids: Sequence[int]) -> tuple[Token, ...]:
    """Tokens of which is known only that the target has them."""
    return tuple(Token(id_, Source.TARGET, 0.0, id_) for id_ in ids)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one place: of the token that was emitted, and of the likeliest ones as (id, value)."""

    value: float
    top: list[tuple[int, float]]


class Step(msgspec.Struct, frozen=True):
    """What one round emitted: at least one token, the reason if generation ends, and how many rows the target decoded.

    finish_reason: None while it goes on; "stop" after an end-of-generation token (the last of `tokens`), "length" at
    max_tokens, "context" when the context is full, "cancelled" after a cancel.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None = None
    rows: int = 0


# -- counts and times --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Counts of one answer.

    drafted: tokens proposed; verified: of them, sent to the target; accepted: of them, taken (relaxed ones included).
    plain_ms: what decoding without drafts would have taken by the cost curve, and took_ms what it took; 0 for not known.
    accepted_by_position[i]: rounds in which the i-th drafted token was taken.
    """

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    relaxed: int = 0
    relaxed_nats: float = 0.0
    plain_ms: float = 0.0
    took_ms: float = 0.0
    accepted_by_position: list[int] = field(default_factory=list)

    def add(self, drafted: int, verified: int, accepted: int, emitted: int) -> None:
        """Count one round."""
        self.tokens += emitted
        self.rounds += 1
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        taken = self.accepted_by_position
        taken += [0] * (accepted - len(taken))
        for i in range(accepted):
            taken[i] += 1

    def join(self, other: Tally) -> None:
        """Count another answer's tokens in; positions are its own."""
        counts = ("tokens", "rounds", "drafted", "verified", "accepted", "relaxed")
        for name in (*counts, "relaxed_nats", "plain_ms", "took_ms"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def times_plain(self) -> float:
        """Times as fast as without drafts; 0 where nothing was drafted, or the curve is not known."""
        return round(self.plain_ms / self.took_ms, 3) if self.took_ms and self.drafted else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens emitted a round; 1 is plain decoding."""
        return self.tokens / self.rounds if self.rounds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The counts as the `speculation` block of a result has them."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "relaxed": self.relaxed,
            "relaxed_nats": round(self.relaxed_nats, 4),
            "mean_length": round(self.mean_length, 3),
            "accepted_by_position": list(self.accepted_by_position),
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one answer went, in milliseconds.

    prefill, draft, companion and verify are time inside llama.cpp's decodes; other is all the rest of total.
    """

    prefill_ms: float
    draft_ms: float
    companion_ms: float
    verify_ms: float
    first_token_ms: float
    total_ms: float
    tokens: int

    @property
    def other_ms(self) -> float:
        """Time of the generation outside llama.cpp's decodes."""
        inside = self.prefill_ms + self.draft_ms + self.companion_ms + self.verify_ms
        return max(0.0, self.total_ms - inside)

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second after the prompt was read."""
        seconds = (self.total_ms - self.prefill_ms) / 1000.0
        return self.tokens / seconds if seconds > 0 else 0.0

    def as_dict(self) -> dict[str, float]:
        """The timings as results have them, those of properties included."""
        return {name: round(getattr(self, name), 2) for name in _TIMES}


_TIMES = (
    *("prefill_ms", "draft_ms", "companion_ms", "verify_ms", "other_ms"),
    *("first_token_ms", "total_ms", "tokens_per_second"),
)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(one), len(other))
    if list(one[:n]) == list(other[:n]):
        return n
    return next(i for i in range(n) if one[i] != other[i])
