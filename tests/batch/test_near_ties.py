"""On the real model, parallelism changes a greedy text only where the target has hardly a preference."""

from contextlib import closing

import llama_cpp
import numpy as np
import pytest

from pyspec.batch import Batch, Record, Settings

PROMPTS = [
    "Name three colours.", "What is 2 + 3?", "Say hello in French.", "Write one line about rain.",
]  # fmt: skip
NEAR = 0.5
"""Nats. Kernels for one row and for many round differently, and the Q4_1 file's rounding reaches tenths."""


def answers(path, parallel, prompts, tokens):
    """Token ids of each prompt, and the answer's text."""
    options = {"draft": "none", "companion": "none", "n_ctx": 256}
    options |= {"n_threads": 1, "n_threads_batch": 1}
    with Batch(path, parallel=parallel, settings=Settings(max_tokens=tokens), **options) as batch:
        records = [Record(id=str(i), prompt=prompt) for i, prompt in enumerate(prompts)]
        asked = [batch.maker.make(i, record).tokens for i, record in enumerate(records)]
        told = {result.index: result.text for result in batch.run(records)}
    return [(tokens, told[i]) for i, tokens in enumerate(asked)]


@pytest.mark.parametrize(("n", "tokens"), [(3, 10), pytest.param(4, 16, marks=pytest.mark.slow)])
def test_texts_differ_at_near_ties_only(smollm2, n, tokens):
    """Where one and several at once part, the target's two tokens are within NEAR of each other."""
    alone, together = (answers(smollm2, parallel, PROMPTS[:n], tokens) for parallel in (1, n))
    with closing(llama_cpp.Llama(smollm2, n_ctx=256, n_threads=1, verbose=False)) as judge:
        for (prompt, a), (_, b) in zip(alone, together, strict=True):
            if a == b:
                continue
            first, second = (judge.tokenize(text.encode(), add_bos=False) for text in (a, b))
            at = next(i for i in range(tokens) if first[i] != second[i])
            judge.reset()
            judge.eval([*prompt, *first[:at]])
            row = llama_cpp.llama_get_logits_ith(judge.ctx, -1)
            logits = np.ctypeslib.as_array(row, shape=(judge.n_vocab(),))
            assert abs(float(logits[first[at]] - logits[second[at]])) < NEAR
            assert min(logits[first[at]], logits[second[at]]) > float(logits.max()) - NEAR
