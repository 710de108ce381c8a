"""Log-probabilities of a prompt's tokens: it is prefilled with all logits, a chunk a round, beside other answers."""

from __future__ import annotations

from pyspec.batch.jobs import ActiveJob
from pyspec.engine.handle import ALL_ROWS, Engine
from pyspec.text.tokens import TokenLogprobs

PIECE = 64
"""Prompt tokens of a chunk: the logits of 64 with a vocabulary of 150,000 take 40 MB."""


def score_piece(engine: Engine, answer: ActiveJob, most: int = PIECE) -> bool:
    """Score the next chunk of an answer's prompt. Returns whether all but the last token are done. Raises EngineError.

    most: tokens of the chunk.
    """
    scores = answer.scored
    if scores is None:
        return True
    prompt, seq, held = answer.job.tokens, answer.run.seq, len(scores) - 1
    piece = prompt[held : min(held + most, len(prompt) - 1)]
    if piece:
        engine.set_tokens(seq, prompt[: held + len(piece)], held)
        engine.verify([(seq, 0, ALL_ROWS)])
    n = answer.job.alternatives or 0
    for i in range(len(piece)):
        scores.append(TokenLogprobs.of(engine.row(seq, i), prompt[held + i + 1], n))
    return len(scores) == len(prompt)
