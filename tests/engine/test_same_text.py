"""At a seed a text is the same whatever drafts, how far, and beside whom; where two part, rounding can make either choice."""

from collections import Counter
from contextlib import closing, nullcontext
from itertools import product

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from helpers.answers import ask
from measure.logits import top_two

from pyspec.engine.options import Speculation
from pyspec.sampling.chain import build_chain
from pyspec.sampling.options import NOISES, Sampling

N_TOKENS = 20
MOVE, TRIES = 0.01, 500
"""Nats: rows of tiny models move by some 1e-6 with the width of their batch, up to 0.007 beside others' cells in the KV."""

DRY = {"dry_multiplier": 0.6, "dry_allowed_length": 1, "dry_penalty_last_n": -1}
XTC = {"xtc_probability": 0.5, "xtc_threshold": 0.08}
HEAT = {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5}
SHAPES = [{}, DRY, {}, XTC, {}, HEAT, {**DRY, **XTC, **HEAT}]
"""What else shapes the i-th prompt's answer; seven of them, so that each meets each temperature."""


@pytest.fixture(scope="module", params=[28, pytest.param(200, marks=pytest.mark.slow)])
def count(request):
    """How many prompts; the 28th is the last whose temperature and shape no other one has."""
    return request.param


def prompts(count):
    """Prompts in which lookup finds something at times."""
    rng = np.random.default_rng(4)
    return [(tiny.A + rng.integers(0, 6, 10)).tolist() for _ in range(count)]


def drawn(i):
    heat, cut = (0.6, 0.8, 1.0, 1.5)[i % 4], {"top_k": 0, "top_p": 1.0, "min_p": 0.05 * (i % 2)}
    return Sampling(temperature=heat, seed=100 + i, **cut, **SHAPES[i % len(SHAPES)])


@pytest.fixture(scope="module")
def plain(tiny_target, count):
    from pyspec.llama.speculative import SpeculativeLlama

    sizes = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1}
    with SpeculativeLlama(str(tiny_target), draft="none", **sizes) as llm:
        ids = [ask(llm, prompt, N_TOKENS, drawn(i)).ids for i, prompt in enumerate(prompts(count))]
        return [(each, llm.detokenize(each).decode()) for each in ids]


def parted(ours, theirs):
    return next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)


@pytest.fixture
def likely(open_plain, tiny_target, count):
    """What may be chosen at a token of plain text, as its row is rounded; loads the model when first asked."""

    def found(i, at, ids):
        llm, sampling = open_plain(tiny_target, logits_all=True), drawn(i)
        text = [*prompts(count)[i], *ids[:at]]
        llm.eval(text)
        row, rng = np.array(llm.scores[len(text) - 1], np.float32), np.random.default_rng(1)
        moved = row + rng.uniform(-MOVE, MOVE, (TRIES, len(row))).astype(np.float32)
        chain = build_chain(sampling, llm, tokens=prompts(count)[i])
        with nullcontext() if chain is None else closing(chain):
            for token in ids[:at] if chain is not None else ():
                llama_cpp.llama_sampler_accept(chain.sampler, token)
            return {top_two(each, chain, sampling.coupling, len(text)).first for each in moved}

    return found


@pytest.mark.parametrize("kind", ["lookup", "model", "lookup+model", "eagle3"])
def test_no_draft_changes_a_text(
    open_llama, likely, tiny_target, tiny_draft, tiny_eagle3, plain, kind, count
):
    draft = kind.replace("model", str(tiny_draft)).replace("eagle3", str(tiny_eagle3))
    llm = open_llama(tiny_target, draft=draft)
    accepted, ties = Counter(), {}
    for k, (i, prompt) in product(range(1, 9), enumerate(prompts(count))):
        ids, _ = plain[i]
        how = Speculation(length=f"fixed:{k}")
        found = ask(llm, prompt, N_TOKENS, drawn(i), speculation=how).ids
        accepted[k] += llm.last_speculation["accepted"]
        if (at := parted(found, ids)) is not None:
            ties[k, i, at] = found[at] in likely(i, at, ids)
        else:
            assert found == ids
    assert all(accepted[k] for k in range(1, 9))
    assert all(ties.values()), ties


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_k": 1, "noise": "llama.cpp"}, {"top_p": 1e-6, "min_p": 0.0}]
)
def test_drafts_of_one_candidate_are_greedy(open_llama, tiny_target, tiny_draft, options):
    """There the target takes its argmax at any temperature; a draft that drew would be refused for nothing."""
    llm, drafted = open_llama(tiny_target, draft=tiny_draft), Speculation(length="fixed:3")
    one = Sampling(temperature=2.0, **options)
    for prompt in prompts(5):
        cold = ask(llm, prompt, N_TOKENS, speculation=drafted)
        found = ask(llm, prompt, N_TOKENS, one, speculation=drafted)
        assert (found.ids, found.flags) == (cold.ids, cold.flags)
    assert "a" in cold.flags


PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
SAMPLERS = [
    {"repeat_penalty": 1.3}, {"frequency_penalty": 0.5, "presence_penalty": 0.5}, {"logit_bias": {5: 3.0, 7: -100.0}},
    {"mirostat_mode": 1}, {"mirostat_mode": 2}, {"typical_p": 0.7}, {"dry_multiplier": 0.8},
    {"dry_multiplier": 2.0, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["b"]},
    {"xtc_probability": 0.5}, {"dynatemp_range": 0.6, "dynatemp_exponent": 0.7}, {"min_p": 0.0}, {"top_k": 5},
]  # fmt: skip


@pytest.mark.parametrize("shape", SAMPLERS)
@pytest.mark.parametrize("temperature", [0.0, 0.9, -1.0])
@pytest.mark.parametrize("noise", NOISES)
def test_same_seed_same_text_with_every_sampler(
    open_llama, tiny_target, tiny_draft, shape, temperature, noise
):
    """Samplers that remember what was emitted see the same tokens in the same order, and draw once for each."""
    sampling = Sampling(temperature=temperature, seed=7, noise=noise, **shape)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    assert ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling).ids == plain.ids
