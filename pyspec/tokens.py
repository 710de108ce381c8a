"""What a generation emits: tokens that say where they came from, in steps of one round each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Source(IntEnum):
    """Where an emitted token came from; the values are the extension's."""

    TARGET = 0
    ACCEPTED = 1
    RELAXED = 2

    @property
    def label(self) -> str:
        """The name in results: target, accepted or relaxed."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token.

    id: vocabulary id.
    source: the target's own choice, a drafted token it chose too, or a drafted runner-up.
    gap: for a relaxed token, how much the target preferred its own choice, in nats; 0 otherwise.
    preferred: the target's own choice at this place; differs from `id` only for a relaxed token.
    """

    id: int
    source: Source
    gap: float
    preferred: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one round emitted: at least one token, and why the generation ends if it does.

    finish_reason: None while it goes on; "stop" after an end-of-generation token (the last of `tokens`), "length" at
    max_tokens, "context" when the context is full, "cancelled" after a cancel.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None = None
