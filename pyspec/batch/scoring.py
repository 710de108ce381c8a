"""Log-probabilities of a prompt's tokens: it is prefilled with all logits, a chunk a round, beside other answers."""

from __future__ import annotations

from pyspec.batch.jobs import ActiveJob
from pyspec.engine.handle import ALL_ROWS, Engine
from pyspec.text.tokens import TokenLogprobs

SCORED_CHUNK = 64
"""Prompt tokens of a chunk: the logits of 64 with a vocabulary of 150,000 take 40 MB."""


def score_chunk(engine: Engine, answer: ActiveJob, most: int = SCORED_CHUNK) -> bool:
    """Score the next chunk of an answer's prompt. Returns whether all but the last token are done. Raises EngineError.

    most: tokens of the chunk.
    """
    scores = answer.scored
    if scores is None:
        return True
    prompt, seq, held = answer.job.tokens, answer.run.seq, len(scores) - 1
    chunk = prompt[held : min(held + most, len(prompt) - 1)]
    if chunk:
        engine.set_tokens(seq, prompt[: held + len(chunk)], held)
        engine.verify([(seq, 0, ALL_ROWS)])
    n = answer.job.alternatives or 0
    for i in range(len(chunk)):
        scores.append(TokenLogprobs.of(engine.row(seq, i), prompt[held + i + 1], n))
    return len(scores) == len(prompt)
