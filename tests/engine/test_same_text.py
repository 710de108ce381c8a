"""At a seed a text is the same whatever drafts, how far, and beside whom; where rounding parts two, it was a near-tie."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from answers import ask

from pyspec._lib import ffi, lib
from pyspec.batch import Batch, Record, Settings
from pyspec.sampling import Sampling

N_TOKENS, N_PROMPTS = 20, 16
NEAR = 1e-3
"""Nats: rows of tiny models move by some 1e-6 with the width of their batch."""


def prompts():
    """Prompts in which lookup finds something at times."""
    rng = np.random.default_rng(4)
    return [(tiny.A + rng.integers(0, 6, 10)).tolist() for _ in range(N_PROMPTS)]


def drawn(i):
    """How the i-th prompt is answered."""
    return Sampling(
        temperature=(0.6, 0.8, 1.0, 1.5)[i % 4],
        top_k=0,
        top_p=1.0,
        min_p=0.05 * (i % 2),
        seed=100 + i,
    )


@pytest.fixture(scope="module")
def plain(tiny_target):
    """Each prompt's text without drafts, its rows, and its sampling."""
    from pyspec.llama import SpeculativeLlama

    with SpeculativeLlama(
        str(tiny_target), draft="none", n_ctx=256, n_threads=1, n_threads_batch=1
    ) as llm:
        return [ask(llm, prompt, N_TOKENS, drawn(i)).ids for i, prompt in enumerate(prompts())]


def parted(ours, theirs):
    """Where two texts part first, or None."""
    return next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)


def gap(open_plain, tiny_target, text, position, sampling):
    """How far the drawn token is ahead of the next one, nats."""
    llm = open_plain(tiny_target, logits_all=True)
    llm.eval(text[:position])
    row = np.array(llm.scores[position - 1], np.float32)
    how = ffi.new("ps_coupling *", sampling.coupling)
    out = ffi.new("ps_row *")
    assert lib.ps_draw(ffi.from_buffer("float[]", row), len(row), how, position, out) == lib.PS_OK
    return (out.z1 - out.z2) / sampling.temperature


@pytest.mark.parametrize("kind", ["lookup", "model", "lookup+model", "eagle3"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_no_draft_changes_a_text(
    open_llama, open_plain, tiny_target, tiny_draft, tiny_eagle3, plain, kind, k
):
    """By lookup, a model, both, a head that reads the target's states; one to eight tokens a round."""
    file = tiny_eagle3 if kind == "eagle3" else tiny_draft
    draft = kind.replace("model", str(file)).replace("eagle3", str(file))
    llm = open_llama(tiny_target, draft=draft, length=f"fixed:{k}")
    accepted = 0
    for i, prompt in enumerate(prompts()):
        text = ask(llm, prompt, N_TOKENS, drawn(i)).ids
        accepted += llm.last_speculation["accepted"]
        at = parted(text, plain[i])
        if at is not None:
            whole = [*prompt, *plain[i]]
            assert gap(open_plain, tiny_target, whole, len(prompt) + at, drawn(i)) < NEAR
        assert at is not None or text == plain[i]
    assert accepted


def test_no_neighbour_changes_a_text(tiny_target, plain):
    """One at a time and eight together, with lookup, in either order."""
    settings = Settings(max_tokens=N_TOKENS, raw=True)
    found = []
    for parallel, step in ((1, 1), (8, -1)):
        with Batch(
            str(tiny_target),
            draft="lookup",
            parallel=parallel,
            n_ctx=128,
            settings=settings,
            n_threads=1,
            n_threads_batch=1,
        ) as batch:
            texts = {result.id: result.text for result in batch.run(records()[::step])}
        found.append([texts[str(i)] for i in range(N_PROMPTS)])
    assert sum(one != other for one, other in zip(*found)) == 0


def records():
    """The prompts as records of a batch."""
    made = []
    for i, prompt in enumerate(prompts()):
        how = drawn(i)
        made.append(
            Record(
                id=str(i),
                tokens=prompt,
                seed=how.seed,
                temperature=how.temperature,
                top_k=0,
                top_p=1.0,
                min_p=how.min_p,
            )
        )
    return made
