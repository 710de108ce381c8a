"""Log-probabilities of a prompt's tokens: it is prefilled with all logits, a chunk a round, beside other answers."""

from __future__ import annotations

from pyspec.batch.jobs import ActiveJob
from pyspec.engine.handle import Engine
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
    prompt, held, n = answer.job.tokens, len(scores) - 1, answer.job.alternatives or 0
    end = min(held + most, len(prompt) - 1)
    if end > held:
        rows = engine.rows_behind(answer.run.seq, prompt[:end], held)
        scores += [TokenLogprobs.of(row, token, n) for row, token in zip(rows, prompt[held + 1 :])]
    return len(scores) == len(prompt)
