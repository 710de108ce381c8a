"""Samplers beyond OpenAI's, and the noise of their draws, as each interface of the server takes them."""

import pytest
from helpers import tiny
from helpers.asking import LEAST, ask

from pyspec.sampling import chain


@pytest.fixture(scope="module")
def server(serve_all, tiny_folder):
    draft = tiny_folder / "sampled-draft.gguf"
    return serve_all(draft=tiny.write(draft, tokens=tiny.ASCII, noise=0.15))


MORE = {
    "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["x", "\n"], "xtc_probability": 0.6, "xtc_threshold": 0.05,
    "dynatemp_range": 0.4, "dynatemp_exponent": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("path", LEAST)
@pytest.mark.parametrize("noise", ["coupled", "llama.cpp"])
def test_samplers_and_noise_by_request(server, monkeypatch, path, noise):
    """By llama-server's names in every interface; the block tells whose random numbers drew."""
    seen = []
    real = chain.build_chain
    noted = lambda how, *rest: seen.append(how) or real(how, *rest)  # noqa: E731
    monkeypatch.setattr(chain, "build_chain", noted)
    body = {**LEAST[path], **MORE, "sampling": noise, "temperature": 1.5, "seed": 7}
    told = ask(server, path, **body)
    assert (told["speculation"]["sampling"], told["speculation"]["seed"]) == (noise, 7)
    assert {name: getattr(seen[0], name) for name in MORE} == MORE
