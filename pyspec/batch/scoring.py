"""How likely a prompt's own tokens are: it is read with every row's logits, a piece a round, beside the answers of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
from llama_cpp import _internals as internals

from pyspec.errors import Cancelled, EngineError
from pyspec.tokens import TokenLogprobs

if TYPE_CHECKING:
    from pyspec.batch.jobs import ActiveJob

PIECE = 64
"""Prompt tokens whose rows one decode brings: 64 of a vocabulary of 150,000 take 40 MB."""

_ABORTED = 2


class PromptScorer:
    """Reads prompts by the target's own context, for which it has to be told of the sequence's text afterwards."""

    def __init__(self, target: Any, n_batch: int) -> None:
        self._ctx, self._n_vocab = target._ctx.ctx, target.n_vocab()  # noqa: SLF001
        self._most = min(PIECE, n_batch)
        self._batch = internals.LlamaBatch(n_tokens=self._most, embd=0, n_seq_max=1, verbose=False)

    def read(self, answer: ActiveJob, most: int = PIECE) -> bool:
        """Read the next piece of its prompt; whether that was the last, the last token aside. Raises EngineError.

        most: tokens of the piece.
        """
        scores = answer.scored
        if scores is None:
            return True
        prompt, seq, start = answer.job.tokens, answer.run.seq, len(scores) - 1
        if start == 0:
            memory = llama_cpp.llama_get_memory(self._ctx)
            llama_cpp.llama_memory_seq_rm(memory, seq, -1, -1)
        piece = prompt[start : min(start + min(most, self._most), len(prompt) - 1)]
        if piece:
            self._decode(piece, seq, start)
        n = answer.job.alternatives or 0
        for i in range(len(piece)):
            pointer = llama_cpp.llama_get_logits_ith(self._ctx, i)
            row = np.ctypeslib.as_array(pointer, (self._n_vocab,))
            scores.append(TokenLogprobs.of(row, prompt[start + i + 1], n))
        return len(scores) == len(prompt)

    def _decode(self, piece: list[int], seq: int, start: int) -> None:
        batch = self._batch.batch
        batch.n_tokens = len(piece)
        for i, token in enumerate(piece):
            batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
        code = llama_cpp.llama_decode(self._ctx, batch)
        if code == _ABORTED:
            raise Cancelled("the batch was cancelled")
        if code != 0:
            raise EngineError(f"llama.cpp could not read a prompt: its decode returned {code}")
