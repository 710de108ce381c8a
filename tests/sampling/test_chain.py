"""Sampler options and the chains they make, with DRY and XTC."""

import gc
import math
from contextlib import closing
from itertools import product

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from measure.logits import top_two

from pyspec.errors import OptionError
from pyspec.sampling.chain import build_chain, xtc_chance
from pyspec.sampling.options import BREAKER_BYTES, MAX_BREAKERS, Sampling


def applied(chain, logits):
    """The candidates of a row behind a chain, and the one that it has chosen."""
    data = (llama_cpp.llama_token_data * len(logits))()
    for i, logit in enumerate(logits):
        data[i].id, data[i].logit = i, logit
    array = llama_cpp.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain.sampler, array)
    return {array.data[i].id for i in range(array.size)}, data[array.selected].id


def chosen(chain, logits):
    return applied(chain, logits)[1]


@pytest.mark.parametrize(("options", "shaped"), [
    ({}, False), ({"temperature": 0.0}, False),
    ({"top_k": 1, "top_p": 0.1, "min_p": 0.5}, False),
    ({"repeat_penalty": 1.1}, True), ({"frequency_penalty": 0.1}, True),
    ({"presence_penalty": -0.1}, True), ({"logit_bias": {3: 1.0}}, True),
    ({"logit_bias": {}}, False), ({"mirostat_mode": 1}, True),
    ({"mirostat_mode": 2, "temperature": 0.0}, False),
    ({"dry_multiplier": 0.8}, True), ({"xtc_probability": 0.5}, True),
    ({"dynatemp_range": 0.5}, False),
])  # fmt: skip
def test_shaped(options, shaped):
    assert Sampling(**options).shaped is shaped


def test_samplers_that_are_off_add_nothing(open_plain, tiny_target):
    assert build_chain(Sampling(temperature=0.0), open_plain(tiny_target)) is None
    with closing(build_chain(Sampling(), open_plain(tiny_target))) as chain:
        assert llama_cpp.llama_sampler_chain_n(chain.sampler) == 4


@pytest.mark.parametrize("noise", ["coupled", "llama.cpp"])
def test_of_one_candidate_nothing_is_drawn(noise):
    """Drafts are greedy, and a result has no seed; mirostat and temperatures below 0 look at no top-k."""
    one = Sampling(top_k=1, noise=noise)
    assert (one.draw, one.coupling, one.published, one.seeded()) == ("greedy", None, {}, one)
    whole = "coupled" if noise == "coupled" else "apart"
    assert Sampling(top_k=2, noise=noise).draw == whole
    assert Sampling(top_k=1, temperature=-1.0, noise=noise).draw == whole
    assert Sampling(top_k=1, mirostat_mode=2, noise=noise).draw == "apart"


@pytest.mark.parametrize("noise", ["coupled", "llama.cpp"])
def test_the_coldest_temperature_chooses_the_likeliest(open_plain, tiny_target, noise):
    """Logits over less would all be infinite, and the lowest id would be drawn."""
    cold = Sampling(temperature=1e-39, top_k=0, top_p=1.0, min_p=0.0, seed=1, noise=noise)
    row = np.linspace(1.0, 30.0, 32).astype(np.float32)
    with closing(build_chain(cold, open_plain(tiny_target))) as chain:
        best = top_two(row, chain, cold.coupling) if cold.ours else None
        assert (chosen(chain, row) if best is None else best.first) == 31
        assert best is None or math.isfinite(best.z1)


@pytest.mark.parametrize(("seed", "wanted"), [(-1, 0xFFFFFFFF), (2**40 + 5, 5), (-5, 2**32 - 5)])
def test_a_seed_has_32_bits(seed, wanted):
    assert Sampling(seed=seed).seed == wanted


A, B, C = tiny.A, tiny.A + 1, tiny.A + 2
REPEATING = [A, B, C, A, B]
"""A text that c would prolong a repetition of two tokens of."""


@pytest.mark.parametrize(("options", "second"), [
    ({}, True), ({"dry_allowed_length": 3}, False), ({"dry_penalty_last_n": 2}, False),
    ({"dry_penalty_last_n": -1}, True), ({"dry_penalty_last_n": (1 << 31) - 1}, True),
    ({"dry_penalty_last_n": 0}, False), ({"dry_sequence_breakers": ["b"]}, False),
    ({"dry_sequence_breakers": ["c"]}, False), ({"dry_sequence_breakers": []}, True),
])  # fmt: skip
@pytest.mark.parametrize("n_prompt", [0, 3, 5])
def test_dry_reads_prompt_and_answer_alike(open_plain, tiny_target, options, second, n_prompt):
    """What would go on a repetition gives way to the next one, whoever wrote what is repeated."""
    sampling = Sampling(temperature=0.0, dry_multiplier=2.0, **options)
    chain = build_chain(sampling, open_plain(tiny_target), tokens=REPEATING[:n_prompt])
    if chain is None:
        assert not second
        return
    for token in REPEATING[n_prompt:]:
        llama_cpp.llama_sampler_accept(chain.sampler, token)
    row = np.zeros(32)
    row[C], row[A] = 3.0, 2.0
    assert chosen(chain, row) == (A if second else C)
    chain.close()


def test_chances_of_xtc_are_uniform_and_apart():
    """Over seeds and positions; and each says nothing of its neighbours' in either."""
    chances = np.array([[xtc_chance(seed, at) for at in range(200)] for seed in range(200)])
    assert 0.0 < chances.min() < chances.max() < 1.0
    seen, _ = np.histogram(chances, 64, (0.0, 1.0))
    due = chances.size / 64
    # 63 degrees of freedom exceed this once in 1000 times
    assert ((seen - due) ** 2 / due).sum() < 103.4
    for one, two in ((chances[:, 1:], chances[:, :-1]), (chances[1:], chances[:-1])):
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 4 / math.sqrt(one.size)


@pytest.mark.parametrize("noise", ["coupled", "llama.cpp"])
def test_xtc_excludes_as_often_as_it_shall(open_plain, tiny_target, noise):
    sampling = Sampling(
        temperature=1.0, seed=3, noise=noise, xtc_probability=0.3, xtc_threshold=0.2
    )
    row = np.full(32, -20.0)
    row[[A, B, C]] = np.log([0.5, 0.4, 0.1])
    excluded, n = 0, 2000
    chain = build_chain(sampling, open_plain(tiny_target))
    for _ in range(n):
        excluded += A not in applied(chain, row)[0]
        llama_cpp.llama_sampler_accept(chain.sampler, A)
    chain.close()
    assert abs(excluded / n - 0.3) < 4 * math.sqrt(0.3 * 0.7 / n)


@pytest.mark.parametrize("off", [
    {"xtc_probability": 0.0}, {"xtc_threshold": 0.51}, {"temperature": 0.0},
    {"temperature": -1.0}, {"mirostat_mode": 2},
])  # fmt: skip
def test_xtc_that_excludes_nothing_is_left_out(off):
    on = {"xtc_probability": 0.5, "xtc_threshold": 0.1}
    assert Sampling(**on).shaped
    assert not Sampling(**(on | off)).excluding


@pytest.mark.parametrize(("name", "value"), [
    *product(("dry_multiplier", "dynatemp_range", "dynatemp_exponent"), (-0.1, math.nan, math.inf)),
    *product(("xtc_probability", "xtc_threshold", "min_p"), (-0.1, 1.1, math.nan, "1")), ("dry_base", 0.9),
    *product(("dry_allowed_length", "dry_penalty_last_n"), (-2, 1.5, 1 << 31)),
    *product(["temperature"], (math.nan, math.inf, -math.inf)), *product(["top_p"], (0.0, 1.5, math.nan)),
    *product(
        ["dry_sequence_breakers"],
        ("\n:", ["x"] * (MAX_BREAKERS + 1), [""], ["é" * BREAKER_BYTES], ["a\0"], ["\ud800"], [1]),
    ),
])  # fmt: skip
def test_values_that_cannot_be_are_refused(name, value):
    with pytest.raises(OptionError, match=rf"^{name} .*\((use|give) "):
        Sampling(**{name: value})


def test_breakers_are_looked_for_once_while_answers_ask_alike(monkeypatch, tiny_target):
    """Each chain has a copy of its own, and no sampler is left behind when the model goes."""
    made, freed = [], []
    init, free = llama_cpp.llama_sampler_init_dry, llama_cpp.llama_sampler_free
    monkeypatch.setattr(
        llama_cpp, "llama_sampler_init_dry", lambda *how: made.append(init(*how)) or made[-1]
    )
    monkeypatch.setattr(llama_cpp, "llama_sampler_free", lambda it: freed.append(it) or free(it))
    llm = llama_cpp.Llama(str(tiny_target), n_ctx=64, verbose=False)
    for base in (1.5, 1.5, 1.75):
        build_chain(Sampling(dry_multiplier=1.0, dry_base=base), llm, tokens=[1, 2]).close()
    assert len(made) == 2
    llm.close()
    del llm
    gc.collect()
    assert all(freed.count(sampler) == 1 for sampler in made)
