"""What a generation emits: tokens, in steps of one round each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Source(IntEnum):
    """Where an emitted token came from; the values are the extension's.

    Attributes:
        TARGET: The target chose it and it was not drafted.
        ACCEPTED: It was drafted, and the target chose it too.
        RELAXED: It was drafted, and the rule took it instead of the target's choice.
    """

    TARGET = 0
    ACCEPTED = 1
    RELAXED = 2

    @property
    def label(self) -> str:
        """The name in results: target, accepted or relaxed."""
        return self.name.lower()


class Token(msgspec.Struct, frozen=True):
    """One emitted token.

    Attributes:
        id: Vocabulary id.
        source: The target's own choice, a drafted token that it chose too, or a drafted runner-up.
        gap: For a relaxed token, how much the target preferred its own choice, in nats; 0 otherwise.
        preferred: The target's own choice at this place; differs from `id` only for a relaxed token.
        confirmed: For a relaxed token under `confirm`, how many drafted tokens after it were the target's own choices.
    """

    id: int
    source: Source
    gap: float
    preferred: int
    confirmed: int | None = None

    def described(self, text: str) -> dict[str, Any]:
        """The token in the form of results. text: its own."""
        made: dict[str, Any] = {
            "text": text,
            "source": self.source.label,
            "gap": round(self.gap, 4),
        }
        return {**made, "confirmed": self.confirmed} if self.confirmed else made


def targets_own(ids: Sequence[int]) -> tuple[Token, ...]:
    """Tokens known only to be the target's own."""
    return tuple(Token(id_, Source.TARGET, 0.0, id_) for id_ in ids)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one place: of the emitted token, and of the likeliest ones as (id, value)."""

    value: float
    top: list[tuple[int, float]]

    @classmethod
    def of(cls, row: npt.NDArray[np.float32], token: int, n: int = 0) -> TokenLogprobs:
        """Log-softmax of a row of logits [n_vocab] at `token`, and its n largest values."""
        wide = row.astype(np.float64)
        logs = wide - wide.max()
        logs -= np.log(np.exp(logs).sum())
        top = np.argpartition(-logs, n)[:n] if n else np.empty(0, np.int64)
        top = top[np.argsort(-logs[top], kind="stable")]
        return cls(float(logs[token]), [(int(i), float(logs[i])) for i in top])


class Step(msgspec.Struct, frozen=True):
    """What one round emitted.

    Attributes:
        tokens: At least one.
        finish_reason: None while it goes on; "stop" after an end-of-generation token (the last of `tokens`), "length" at
            max_tokens, "context" when the context is full, "cancelled" after a cancel.
        rows: Rows that the target decoded.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None = None
    rows: int = 0


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning of two token sequences."""
    n = min(len(one), len(other))
    if list(one[:n]) == list(other[:n]):
        return n
    return next(i for i in range(n) if one[i] != other[i])
