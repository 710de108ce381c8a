"""A model's answers as text, piece by piece."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from pyspec.llama.generation import Generation
from pyspec.llama.options import AnswerOptions
from pyspec.sampling.chain import Sampling
from pyspec.text.answer import AnswerReader
from pyspec.text.parts import AnswerPart, Piece


def stream_text(
    llm: Generation,
    prompt: Sequence[int],
    options: Sampling | AnswerOptions | None = None,
    *,
    chat: bool = False,
    functions: Mapping[str, Any] | None = None,
    **more: Any,
) -> Generator[Piece, None, None]:
    """Answer a prompt of tokens as text. `llm.last_speculation` and `llm.last_timings` then tell what was done.

    Args:
        llm: A `SpeculativeLlama`.
        prompt: Ids of the prompt, such as `ChatTemplate.of(llm).prompt(messages)`.
        options: How the target chooses tokens, or all options.
        chat: Whether this is a chat prompt; reasoning is then not part of the text.
        functions: What a chat answer may call: the JSON schema of each function's parameters, by its name.
        more: Fields of `AnswerOptions`, such as max_tokens, stop, speculation and grammar.

    Yields:
        One piece per round; the last one has a finish_reason.

    Raises:
        PyspecError: As `SpeculativeLlama.steps` does.
    """
    own = AnswerOptions.of(options, **more)
    reader = AnswerReader(llm.piece, own.stop)
    if chat:
        name = str(len(prompt))  # a different name for each turn of a conversation
        reader = llm.speech.reader(prompt, own.stop, functions=functions, name=name)
    held: list[AnswerPart] = []  # of calls, which are complete at the end
    steps = llm.steps(prompt, own)
    with closing(steps):
        for step in steps:
            parts = reader.push([token.id for token in step.tokens])
            reason = "stop" if reader.done else step.finish_reason
            if reason is not None:
                parts += reader.finish()
            held += (part for part in parts if part.kind not in ("content", "reasoning"))
            parts = [part for part in parts if part.kind in ("content", "reasoning")]
            if reason is None:
                yield Piece(step.tokens, rows=step.rows, parts=parts)
                continue
            yield Piece(step.tokens, reason, step.rows, [*parts, *held], reader.inside)
            return
