"""At a seed a text is the same whatever drafts, how far, and beside whom; where rounding parts two, it was a near-tie."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
import tiny
from answers import ask

from pyspec._lib import ffi, lib
from pyspec.batch import Batch, Record, Settings
from pyspec.options import Speculation
from pyspec.sampling import Sampling

N_TOKENS, N_PROMPTS = 20, 200
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
    """Each prompt's tokens without drafts, and their text."""
    from pyspec.llama import SpeculativeLlama

    with SpeculativeLlama(
        str(tiny_target), draft="none", n_ctx=256, n_threads=1, n_threads_batch=1
    ) as llm:
        ids = [ask(llm, prompt, N_TOKENS, drawn(i)).ids for i, prompt in enumerate(prompts())]
        return [(each, llm.detokenize(each).decode()) for each in ids]


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


@pytest.fixture
def gap_of(open_plain, tiny_target):
    """How near a tie is at a token of a prompt's plain text; the model is loaded when one is asked for."""

    def found(i, at, ids):
        prompt = prompts()[i]
        return gap(open_plain, tiny_target, [*prompt, *ids], len(prompt) + at, drawn(i))

    return found


@pytest.mark.parametrize("kind", ["lookup", "model", "lookup+model", "eagle3"])
def test_no_draft_changes_a_text(
    open_llama, gap_of, tiny_target, tiny_draft, tiny_eagle3, plain, kind
):
    """By lookup, a model, both, a head that reads the target's states; one to eight tokens a round."""
    file = tiny_eagle3 if kind == "eagle3" else tiny_draft
    draft = kind.replace("model", str(file)).replace("eagle3", str(file))
    llm = open_llama(tiny_target, draft=draft)
    accepted, ties = Counter(), {}
    for k, (i, prompt) in product(range(1, 9), enumerate(prompts())):
        ids, _ = plain[i]
        how = Speculation(length=f"fixed:{k}")
        found = ask(llm, prompt, N_TOKENS, drawn(i), speculation=how).ids
        accepted[k] += llm.last_speculation["accepted"]
        if (at := parted(found, ids)) is not None:
            ties[k, i, at] = gap_of(i, at, ids)
        else:
            assert found == ids
    assert all(accepted[k] for k in range(1, 9))
    assert {where: nats for where, nats in ties.items() if nats >= NEAR} == {}


@pytest.mark.parametrize("kind", ["none", "lookup", "model"])
def test_no_neighbour_changes_a_text(tiny_target, tiny_draft, gap_of, plain, kind):
    """One at a time and eight together, in either order: each text is the one that was made alone, without drafts."""
    settings = Settings(max_tokens=N_TOKENS, raw=True)
    ties = {}
    for parallel, step in ((1, 1), (8, -1)):
        with Batch(
            str(tiny_target),
            draft=str(tiny_draft) if kind == "model" else kind,
            parallel=parallel,
            n_ctx=128,
            settings=settings,
            n_threads=1,
            n_threads_batch=1,
        ) as batch:
            texts = {result.id: result.text for result in batch.run(records()[::step])}
            tokens = [batch.target.detokenize([token]).decode() for token in range(32)]
        for i, (ids, text) in enumerate(plain):
            if texts[str(i)] != text:
                at = parted_text(texts[str(i)], ids, tokens)
                ties[parallel, i, at] = gap_of(i, at, ids)
    assert {where: nats for where, nats in ties.items() if nats >= NEAR} == {}


def parted_text(text, ids, tokens):
    """The first token of `ids` that a text does not go on with."""
    for at, token in enumerate(ids):
        if not text.startswith(tokens[token]):
            return at
        text = text[len(tokens[token]) :]
    raise AssertionError(f"{text!r} follows the whole answer")


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
