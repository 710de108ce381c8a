"""llama.cpp's server out of a wheel: what its options set."""

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def params(script, monkeypatch):
    """What the server would be started with, by options; a stand-in for the wheel, which tests do not need."""
    threads = lambda: SimpleNamespace(n_threads=0)  # noqa: E731
    draft = SimpleNamespace(
        mparams=SimpleNamespace(path=""), cpuparams=threads(), cpuparams_batch=threads()
    )
    kinds = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NONE=0, COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3=4)
    found = SimpleNamespace(
        model=SimpleNamespace(path=""), cpuparams=threads(), cpuparams_batch=threads(),
        speculative=SimpleNamespace(draft=draft),
    )  # fmt: skip
    wheel = SimpleNamespace(CommonParams=lambda: found, common_speculative_type=kinds)
    monkeypatch.setitem(sys.modules, "xllamacpp", wheel)
    module = script("llama_server")
    return lambda *words: module.params(module.options().parse_args(["-m", "a.gguf", *words]))


def test_without_more_it_drafts_nothing(params):
    found = params("-c", "512", "-np", "4", "-t", "3", "--port", "9")
    assert (found.model.path, found.n_ctx, found.n_parallel, found.port) == ("a.gguf", 512, 4, 9)
    assert (found.cpuparams.n_threads, found.speculative.types) == (3, [0])


def test_a_draft_is_sampled_where_asked(params):
    more = ["--spec-type", "draft-eagle3", "-md", "b.gguf", "--spec-draft-n-max", "2"]
    greedy = params(*more).speculative.draft.probabilistic
    found = params(*more, "--spec-draft-sampling", "probabilistic").speculative
    assert (greedy, found.draft.probabilistic) == (False, True)
    assert (found.types, found.draft.mparams.path, found.draft.n_max) == ([4], "b.gguf", 2)
