"""Sampler settings x what drafts x temperature: the ids are those of `llama_cpp.Llama` with flash attention.

On the tiny F32 model the two are equal for every prompt. tests/engine/test_greedy.py has a real one.
"""

import llama_cpp
import numpy as np
import pytest
from helpers import tiny, tiny_eagle

from pyspec.llama.speculative import SpeculativeLlama

PROMPTS = [bytes(97 + (i * 7 + j * j) % 26 for j in range(5 + i)) for i in range(20)]
SETTINGS = {
    "defaults": {}, "top_k": {"top_k": 5}, "top_p": {"top_p": 0.5}, "min_p": {"min_p": 0.3},
    "no truncation": {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, "typical": {"typical_p": 0.5},
    "repeat": {"repeat_penalty": 1.3}, "frequency": {"frequency_penalty": 0.5, "presence_penalty": 0.2},
    "mirostat 1": {"mirostat_mode": 1}, "mirostat 2": {"mirostat_mode": 2, "mirostat_tau": 3.0},
    "bias": {"logits_processor": llama_cpp.LogitsProcessorList([lambda _, z: z + (np.arange(len(z)) % 3)])},
}  # fmt: skip
N = 24
DRAFTS = ["none", "lookup", "model", "eagle3"]


@pytest.fixture(scope="module")
def opened(tiny_folder):
    """(theirs, ours by what drafts, ids of theirs by question), over a model of 32 tokens; ours draft four at a time."""
    target = str(tiny.write(tiny_folder / "table-target.gguf"))
    draft = tiny.write(tiny_folder / "table-draft.gguf", noise=0.15)
    eagle = tiny_eagle.write(tiny_folder / "table-eagle.gguf", layers=(0, 1, 1))
    files = {"none": "none", "lookup": "lookup", "model": str(draft), "eagle3": str(eagle)}
    options = {
        "n_ctx": 256,
        "n_threads": 1,
        "n_threads_batch": 1,
        "flash_attn": True,
        "verbose": False,
    }
    theirs = llama_cpp.Llama(target, **options)
    options |= {"companion": "none", "length": "fixed:4", "sampling": "llama.cpp"}
    ours = {name: SpeculativeLlama(target, draft=what, **options) for name, what in files.items()}
    yield theirs, ours, {}
    for llm in (theirs, *ours.values()):
        llm.close()


def ids(llm, prompt, settings, temperature):
    """The first N ids of an answer; the original's go on after its end."""
    llm.set_seed(7)
    stream = llm.generate(llm.tokenize(prompt), temp=temperature, **settings)
    found = [token for token, _ in zip(stream, range(N))]
    stream.close()
    return found[: found.index(tiny.EOS) + 1] if tiny.EOS in found else found


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_ids_are_the_originals(opened, draft, setting, temperature, count):
    theirs, ours, known = opened
    drafted = 0
    for prompt in PROMPTS[-count:]:
        question = prompt, SETTINGS[setting], temperature
        key = prompt, setting, temperature
        if key not in known:
            known[key] = ids(theirs, *question)
        assert ids(ours[draft], *question) == known[key]
        drafted += ours[draft].last_speculation["drafted"]
    assert (drafted > 0) is (draft != "none")
