"""Gemma 4 assistants: what one drafts is what llama.cpp's own calls give for the text alone; the target's KV stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import pytest
from helpers import tiny, tiny_gemma4
from helpers.answers import ask, ask_at_once, drafted
from helpers.nextn import context_of, decode, likeliest, loaded

from pyspec.batch.contexts import Models
from pyspec.errors import DraftMismatch

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A]


@pytest.fixture(scope="module")
def target(tiny_folder):
    """A Gemma 4 of four layers."""
    return tiny_gemma4.write(tiny_folder / "gemma4.gguf")


@pytest.fixture(scope="module")
def assistant(tiny_folder):
    return tiny_gemma4.write_assistant(tiny_folder / "gemma4-assistant.gguf")


@pytest.fixture(scope="module")
def reference(target, assistant):
    """Drafts after a text: the target's part decoded afresh, by llama.cpp's calls alone."""
    with loaded(target) as model, loaded(assistant) as head:
        yield lambda text, n: _draft(model, head, text, n)


def _draft(model: Any, head: Any, text: Sequence[int], n: int) -> list[int]:
    mtp = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    with context_of(model) as trunk, context_of(head, ctx_other=trunk, ctx_type=mtp) as context:
        own = decode(trunk, text[:-1], 0, None)[-1:]  # the head's context has emptied its cells
        found = [text[-1]]
        for _ in range(n):
            own = decode(context, found[-1:], len(text) - 1, own)
            found.append(likeliest(context))
    return found[1:]


@pytest.mark.parametrize("answered", [1, 8, 33])
def test_drafts_are_llama_cpps(open_llama, target, assistant, reference, answered):
    """After a prompt, and after rounds in which drafts were accepted or refused, beyond the window."""
    llm = open_llama(target, draft=assistant)
    ask(llm, PROMPT, answered)
    assert drafted(llm, 6)[0] == reference(llm.session.tokens, 6)


def test_text_is_the_targets(open_llama, target, assistant):
    """Over texts that begin alike, go back, or have nothing in common."""
    llm, plain = open_llama(target, draft=assistant), open_llama(target)
    proposed = 0
    for text in (PROMPT, [*PROMPT, 9, 9], PROMPT[:2], [20, 21], PROMPT):
        assert ask(llm, text, 60).ids == ask(plain, text, 60).ids
        proposed += llm.last_speculation["drafted"]
    assert proposed > 100


def test_four_sequences(open_llama, target, assistant):
    """Each has the text that it has alone, and drafts as often right."""
    prompts = [PROMPT, [9, 8, 7, 9], [20, 4], [11, 12, 13, 14, 15, 16]]
    alone = open_llama(target, draft=assistant, length="fixed:3")
    wanted = [(ask(alone, p, 30).ids, alone.last_speculation["accepted"]) for p in prompts]
    models = Models(str(target), str(assistant), "none", n_threads=1, n_threads_batch=1, trust=True)
    runs = ask_at_once(models, prompts, [30] * 4)
    assert [(r.tokens[len(p) :], r.tally.accepted) for r, p in zip(runs, prompts)] == wanted


def test_tried_with_its_target_and_found_beside_it(open_llama, tmp_path, monkeypatch):
    """In a child; then it drafts."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tiny_gemma4.write(tmp_path / "model.gguf", n_layer=20)
    tiny_gemma4.write_assistant(tmp_path / "model-assistant.gguf")
    llm = open_llama(model, draft="auto", trust=False)
    ask(llm, PROMPT, 20)
    assert llm.last_speculation["draft"] == "lookup+model-assistant"
    assert llm.last_speculation["drafted"] > 0


@pytest.mark.parametrize("what", ["another model", "another width"])
def test_what_does_not_fit_is_refused(open_llama, target, tiny_target, tmp_path, what):
    hidden = 32 if what == "another model" else 64
    draft = tiny_gemma4.write_assistant(tmp_path / "assistant.gguf", hidden=hidden)
    with pytest.raises(DraftMismatch, match=r"assistant\.gguf"):
        open_llama(tiny_target if what == "another model" else target, draft=draft)
