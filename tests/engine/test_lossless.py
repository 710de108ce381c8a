"""A seed gives the text that it gives without speculation, whatever shapes the draw."""

import pytest
from helpers import tiny
from helpers.answers import ask

from pyspec.sampling.options import NOISES, Sampling

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.3, "min_p": 0.0}, {"temperature": -1.0}, {"top_k": 5}]
)
def test_same_seed_same_text(open_llama, tiny_target, tiny_draft, seed, sampling):
    """One draw a token, drafted or not: a seed gives the text that it gives without speculation."""
    sampling = Sampling(seed=seed, **sampling)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    assert ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling).ids == plain.ids


@pytest.mark.parametrize(
    "shape",
    [
        {"repeat_penalty": 1.3},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"logit_bias": {5: 3.0, 7: -100.0}}, {"mirostat_mode": 1}, {"mirostat_mode": 2}, {"typical_p": 0.7},
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 2.0, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["b"]},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.6, "dynatemp_exponent": 0.7},
    ],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("noise", NOISES)
def test_same_seed_same_text_with_every_sampler(
    open_llama, tiny_target, tiny_draft, shape, temperature, noise
):
    """Samplers that remember what was emitted see the same tokens in the same order, and draw once for each."""
    sampling = Sampling(temperature=temperature, seed=7, noise=noise, **shape)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    assert ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling).ids == plain.ids
