"""Answers as text, one piece a round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.sampling import Sampling
from pyspec.text import TextAssembler
from pyspec.tokens import Token

__all__ = ["Piece", "TextAssembler", "stream_text"]

_DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one round, and the tokens it came with.

    The text may lag behind the tokens: a character split over tokens, or what may become a stop string, waits for the next
    piece. finish_reason is set on the last piece: "stop", "length", "context" or "cancelled".
    """

    text: str
    tokens: tuple[Token, ...]
    finish_reason: str | None = None


def stream_text(
    llm: SpeculativeLlama,
    prompt: Sequence[int],
    sampling: Sampling = _DEFAULT_SAMPLING,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    speculation: Speculation | None = None,
    grammar: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Generator[Piece, None, None]:
    """Answer a prompt of tokens, one piece a round; the last piece has a finish_reason.

    `llm.last_speculation` and `llm.last_timings` say what was done.
    """
    text = TextAssembler(llm.piece, stop)
    steps = llm.steps(
        prompt,
        sampling,
        max_tokens=max_tokens,
        speculation=speculation,
        grammar=grammar,
        progress=progress,
    )
    try:
        for step in steps:
            shown = text.push([token.id for token in step.tokens])
            reason = "stop" if text.done else step.finish_reason
            if reason is not None:
                yield Piece(shown + text.finish(), step.tokens, reason)
                return
            yield Piece(shown, step.tokens)
    finally:
        steps.close()
