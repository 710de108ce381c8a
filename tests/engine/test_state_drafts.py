"""Recurrent and hybrid models as drafts: they go back to a state that was kept of the text, and draft what they would alone."""

import pytest
from helpers import tiny
from helpers.answers import ask, check_four_at_once

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A, tiny.A + 4]
ARCHITECTURES = ["mamba", "lfm2", "qwen35"]
LONG = 3


@pytest.fixture(params=ARCHITECTURES)
def draft(request, tiny_folder):
    return tiny.write(tiny_folder / f"states-{request.param}.gguf", arch=request.param, n_layer=2)


@pytest.fixture
def target(draft, tiny_folder):
    """What it is a worse copy of, where that one can be drafted for, or a model with a plain KV."""
    arch = draft.stem.removeprefix("states-")
    if arch == "mamba":
        return tiny.write(tiny_folder / "plain-kv.gguf", n_layer=4)
    return tiny.write(tiny_folder / f"of-{arch}.gguf", arch=arch, noise=0.3, n_layer=2)


def expected(text, begin, alone):
    """Tokens accepted where each round drafts three of what the draft says after the text so far."""
    accepted, at = 0, begin
    while at < len(text):
        guesses = alone(text[:at])[: min(LONG, len(text) - at - 1)]
        right = 0
        while right < len(guesses) and guesses[right] == text[at + right]:
            right += 1
        accepted, at = accepted + right, at + right + 1
    return accepted


def test_it_drafts_what_it_would_say_alone(open_llama, target, draft):
    plain = ask(open_llama(target), PROMPT, 60).ids
    own = open_llama(draft)
    accepted = expected([*PROMPT, *plain], len(PROMPT), lambda text: ask(own, text, LONG).ids)
    llm = open_llama(target, draft=draft, length=f"fixed:{LONG}")
    assert ask(llm, PROMPT, 60).ids == plain
    block = llm.last_speculation
    assert accepted - block["accepted"] in (0, 1)  # the last round may be shorter
    assert 0 < accepted < block["drafted"]


def test_another_text_begins_anew(open_llama, target, draft):
    llm = open_llama(target, draft=draft, length=f"fixed:{LONG}")
    text = [*PROMPT, *ask(llm, PROMPT, 30).ids]
    for prompt in (text[:20], [*text[:9], 3], PROMPT[:2], text):
        fresh = open_llama(target, draft=draft, length=f"fixed:{LONG}")
        assert ask(llm, prompt, 20).ids == ask(fresh, prompt, 20).ids
        assert llm.last_speculation["accepted"] == fresh.last_speculation["accepted"]


def test_four_sequences(open_llama, target, draft):
    check_four_at_once(open_llama, target, draft, length=f"fixed:{LONG}")
