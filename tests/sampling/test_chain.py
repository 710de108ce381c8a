"""Sampler options and the chains they make."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager

import llama_cpp
import numpy as np
import pytest
from measure.draws import top_two

from pyspec.errors import OptionError
from pyspec.sampling.chain import Sampling, build_chain, in_force


def chosen(chain, logits):
    data = (llama_cpp.llama_token_data * len(logits))()
    for i, logit in enumerate(logits):
        data[i].id, data[i].logit = i, logit
    array = llama_cpp.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain.sampler, array)
    return data[array.selected].id


@pytest.mark.parametrize(
    ("options", "shaped"),
    [
        ({}, False), ({"temperature": 0.0}, False),
        ({"top_k": 1, "top_p": 0.1, "min_p": 0.5}, False),
        ({"repeat_penalty": 1.1}, True), ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": -0.1}, True), ({"logit_bias": {3: 1.0}}, True),
        ({"logit_bias": {}}, False), ({"mirostat_mode": 1}, True),
        ({"mirostat_mode": 2, "temperature": 0.0}, False),
        ({"dry_multiplier": 0.8}, True), ({"xtc_probability": 0.5}, True),
        ({"dynatemp_range": 0.5}, False),
    ],
)  # fmt: skip
def test_shaped(options, shaped):
    assert Sampling(**options).shaped is shaped


def test_greedy_needs_no_chain(open_plain, tiny_target):
    assert build_chain(Sampling(temperature=0.0), open_plain(tiny_target)) is None


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
    with in_force(chain := build_chain(cold, open_plain(tiny_target))):
        best = top_two(row, chain, cold.coupling) if cold.ours else None
        assert (chosen(chain, row) if best is None else best.first) == 31
        assert best is None or math.isfinite(best.z1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", math.nan), ("temperature", math.inf), ("temperature", -math.inf),
        ("top_p", 0.0), ("top_p", 1.5), ("top_p", math.nan),
        ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ],
)  # fmt: skip
def test_ranges(option, value):
    with pytest.raises(OptionError, match=option):
        Sampling(**{option: value})


@pytest.fixture
def picking(open_plain, tiny_target):
    """Makes a chain of options for the tiny model."""
    with ExitStack() as made:
        yield lambda **how: made.enter_context(_chain(Sampling(**how), open_plain(tiny_target)))


@contextmanager
def _chain(sampling, llm):
    with in_force(chain := build_chain(sampling, llm)):
        yield chain


def test_bias_moves_the_choice(picking):
    row = np.zeros(32)
    row[3] = 5.0
    assert chosen(picking(temperature=0.0, logit_bias={7: 10.0}), row) == 7


def test_top_k_1_is_the_argmax(picking):
    chain = picking(temperature=2.0, top_k=1, seed=1, noise="llama.cpp")
    for row in np.random.default_rng(0).standard_normal((20, 32)):
        assert chosen(chain, row) == int(np.argmax(row.astype(np.float32)))


def test_seeds_repeat(picking):
    free = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "noise": "llama.cpp"}
    chains = [picking(seed=seed, **free) for seed in (1, 1, 2)]
    draws = [[chosen(chain, np.zeros(32)) for _ in range(20)] for chain in chains]
    assert draws[0] == draws[1] != draws[2]


def test_penalties_remember_what_was_accepted(picking):
    chain, row = picking(temperature=0.0, presence_penalty=2.0), np.zeros(32)
    row[5], row[6] = 3.0, 2.0
    assert chosen(chain, row) == 5
    llama_cpp.llama_sampler_accept(chain.sampler, 5)
    assert chosen(chain, row) == 6


@pytest.mark.parametrize(("seed", "wanted"), [(-1, 0xFFFFFFFF), (2**40 + 5, 5), (-5, 2**32 - 5)])
def test_a_seed_has_32_bits(seed: int, wanted: int) -> None:
    assert Sampling(seed=seed).seed == wanted


UNSEEDED = {"seed": 5, "unseeded": True}


@pytest.mark.parametrize(
    ("options", "possible", "faster", "noise"),
    [
        (UNSEEDED, True, True, "block"), (UNSEEDED, True, False, "coupled"),
        (UNSEEDED, False, True, "coupled"), ({"seed": 5}, True, True, "coupled"),
        ({}, True, True, "block"),
        ({"seed": 5, "noise": "block"}, True, False, "block"),
        ({"seed": 5, "noise": "block"}, False, True, "coupled"),
        ({**UNSEEDED, "noise": "coupled"}, True, True, "coupled"),
        ({**UNSEEDED, "noise": "llama.cpp"}, True, True, "llama.cpp"),
    ],
)  # fmt: skip
def test_whose_numbers_draw_is_settled(options, possible, faster, noise):
    """A draft draws for itself where that may be and was asked for, or is faster and nobody gave a seed."""
    settled = Sampling(**options).settled(possible=possible, faster=faster)
    assert settled.published["sampling"] == settled.noise == noise
    assert settled.draw == ("apart" if noise == "llama.cpp" else noise)
    assert settled.coupling is None or settled.coupling.block is (noise == "block")


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 1}, {"mirostat_mode": 2}], ids=str
)
def test_what_the_engine_does_not_draw_is_no_block(options):
    settled = Sampling(**options, noise="block").settled(possible=True, faster=True)
    assert settled.draw != "block"
    assert settled.coupling is None
