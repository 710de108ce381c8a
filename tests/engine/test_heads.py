"""A target's own next-token head (MTP) as the draft: what it drafts is what llama.cpp's own calls give for the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import msgspec
import pytest
from helpers import tiny
from helpers.answers import ask, drafted
from helpers.nextn import context_of, decode, likeliest, loaded

from pyspec.errors import DraftMismatch, UnsupportedModel
from pyspec.store.header import facts_of

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A]


@pytest.fixture(scope="module")
def target(tiny_folder):
    """A hybrid of four layers with a next-token head."""
    return tiny.write(tiny_folder / "headed.gguf", arch="qwen35", n_layer=4, n_heads=1)


@pytest.fixture(scope="module")
def reference(target):
    """Drafts after a text: every position decoded afresh, by llama.cpp's calls alone."""
    with loaded(target) as model:
        yield lambda text, n: _draft(model, text, n)


def _draft(model: Any, text: Sequence[int], n: int) -> list[int]:
    with context_of(model) as trunk:
        states = decode(trunk, text, 0, None)[:-1]
    found: list[int] = []
    with context_of(model, ctx_type=llama_cpp.LLAMA_CONTEXT_TYPE_MTP) as head:
        own = decode(head, text[1:], 1, states)[-1:]
        for _ in range(n):
            found.append(likeliest(head))
            own = decode(head, found[-1:], len(text) + len(found) - 1, own)
    return found


@pytest.mark.parametrize("answered", [1, 8, 33])
def test_drafts_are_llama_cpps(open_llama, target, reference, answered):
    """After a prompt, and after rounds in which drafts were accepted or refused."""
    llm = open_llama(target, draft="mtp")
    ask(llm, PROMPT, answered)
    assert drafted(llm, 6)[0] == reference(llm.session.tokens, 6)


def test_text_is_the_targets(open_llama, target):
    """Over texts that begin alike, go back, or have nothing in common; some drafts are accepted."""
    llm, plain = open_llama(target, draft="mtp"), open_llama(target)
    accepted = 0
    for text in (PROMPT, [*PROMPT, 9, 9], PROMPT[:2], [20, 21], PROMPT):
        assert ask(llm, text, 60).ids == ask(plain, text, 60).ids
        accepted += llm.last_speculation["accepted"]
    assert accepted > 0


def test_auto_takes_the_head(open_llama, target):
    """Lookup goes with it, as with any draft."""
    llm = open_llama(target, draft="auto")
    ask(llm, PROMPT, 10)
    assert llm.last_speculation["draft"] == "lookup+mtp"


def test_a_file_without_a_head_has_none(open_llama, tiny_target):
    """Asked for by name it is refused in one sentence."""
    with pytest.raises(UnsupportedModel, match="no next-token head"):
        open_llama(tiny_target, draft="mtp")


def test_a_head_that_cannot_run_is_refused_with_the_reason(open_llama, tiny_target, monkeypatch):
    """Asked for by name."""
    headed = msgspec.structs.replace(facts_of(tiny_target), heads=1, architecture="glm4")
    monkeypatch.setattr("pyspec.store.heads.facts_of", lambda _path: headed)
    with pytest.raises(UnsupportedModel, match=r"\.gguf: .* no graph for it in glm4 models"):
        open_llama(tiny_target, draft="mtp")


# -- in a file of its own ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside(tiny_folder):
    """The head of `target` without its layers, and without what names its kind."""
    path = tiny_folder / "mtp-headed.gguf"
    return tiny.write(path, arch="qwen35", n_layer=4, n_heads=1, trunk=False)


@pytest.mark.parametrize("answered", [1, 33])
def test_a_head_of_its_own_drafts_the_same(open_llama, target, beside, reference, answered):
    """As the layer inside would."""
    llm = open_llama(target, draft=beside)
    ask(llm, PROMPT, answered)
    assert drafted(llm, 6)[0] == reference(llm.session.tokens, 6)


def test_a_target_without_the_layer_takes_one_beside_it(open_llama, beside, tmp_path, monkeypatch):
    """As `auto` finds it, after its trial with the model; the text is plain decoding's."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    alone = tiny.write(tmp_path / "model.gguf", arch="qwen35", n_layer=40)
    head = tiny.write(
        tmp_path / "mtp-model.gguf", arch="qwen35", n_layer=40, n_heads=1, trunk=False
    )
    llm = open_llama(alone, draft="auto", length="fixed:3", trust=False)
    plain = open_llama(alone)
    for text in (PROMPT, [20, 21]):
        assert ask(llm, text, 40).ids == ask(plain, text, 40).ids
        assert llm.last_speculation["draft"] == f"lookup+{head.stem}"
        assert llm.last_speculation["drafted"] > 0


@pytest.mark.parametrize(("arch", "what"), [("llama", "is of qwen35"), ("lfm2", "is of qwen35")])
def test_a_head_of_another_architecture_is_refused(open_llama, beside, tiny_folder, arch, what):
    other = tiny.write(tiny_folder / f"other-{arch}.gguf", arch=arch)
    with pytest.raises((DraftMismatch, UnsupportedModel), match=what):
        open_llama(other, draft=beside)
