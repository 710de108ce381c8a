"""Next-token heads (MTP) and Gemma 4 assistants: they draft what llama.cpp's own calls give for the text alone."""

from functools import partial

import llama_cpp
import msgspec
import pytest
from helpers import tiny, tiny_dflash, tiny_gemma4
from helpers.answers import ask, check_four_at_once, drafted
from helpers.nextn import context_of, decode, likeliest, loaded

from pyspec.errors import DraftMismatch, UnsupportedModel
from pyspec.gguf.header import facts_of

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A]


@pytest.fixture(scope="module")
def beside(tiny_folder):
    """The head of `headed` without its layers, and without what names its kind."""
    path = tiny_folder / "mtp-headed.gguf"
    return tiny.write(path, arch="qwen35", n_layer=4, n_heads=1, trunk=False)


@pytest.fixture(scope="module")
def gemma(tiny_folder):
    return tiny_gemma4.write(tiny_folder / "gemma4.gguf")


@pytest.fixture(scope="module")
def assistant(tiny_folder):
    return tiny_gemma4.write_assistant(tiny_folder / "gemma4-assistant.gguf")


@pytest.fixture(params=["inside", "beside", "assistant"])
def kind(request, headed, beside, gemma, assistant):
    """A target, what drafts for it, and the drafts of llama.cpp's own calls: every position decoded afresh."""
    if request.param == "assistant":
        with loaded(gemma) as model, loaded(assistant) as head:
            yield gemma, assistant, partial(_by_assistant, model, head)
    else:
        with loaded(headed) as model:
            yield headed, "mtp" if request.param == "inside" else beside, partial(_by_head, model)


def _by_head(model, text, n):
    with context_of(model) as trunk:
        states = decode(trunk, text, 0, None)[:-1]
    found = []
    with context_of(model, ctx_type=llama_cpp.LLAMA_CONTEXT_TYPE_MTP) as head:
        own = decode(head, text[1:], 1, states)[-1:]
        for _ in range(n):
            found.append(likeliest(head))
            own = decode(head, found[-1:], len(text) + len(found) - 1, own)
    return found


def _by_assistant(model, head, text, n):
    mtp = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    with context_of(model) as trunk, context_of(head, ctx_other=trunk, ctx_type=mtp) as context:
        own = decode(trunk, text[:-1], 0, None)[-1:]  # the head's context has emptied its cells
        found = [text[-1]]
        for _ in range(n):
            own = decode(context, found[-1:], len(text) - 1, own)
            found.append(likeliest(context))
    return found[1:]


# -- every kind --------------------------------------------------------------------------------------------------------


def test_drafts_are_llama_cpps(open_llama, kind):
    """After a prompt, and after rounds in which drafts were accepted or refused, beyond an assistant's window."""
    target, draft, reference = kind
    llm = open_llama(target, draft=draft)
    for answered in (1, 8, 33):
        ask(llm, PROMPT, answered)
        assert drafted(llm, 6)[0] == reference(llm.session.tokens, 6)


def test_text_is_the_targets(open_llama, kind):
    target, draft, _ = kind
    llm, plain = open_llama(target, draft=draft), open_llama(target)
    proposed = 0
    for text in (PROMPT, [*PROMPT, 9, 9], PROMPT[:2], [20, 21], PROMPT):
        assert ask(llm, text, 60).ids == ask(plain, text, 60).ids
        proposed += llm.last_speculation["drafted"]
    assert proposed > 100


def test_four_sequences(open_llama, kind):
    check_four_at_once(open_llama, *kind[:2])


def written(kind, folder):
    """A model that has what drafts for it inside or beside it, and the name of that."""
    hybrid, path = {"arch": "qwen35", "n_layer": 40}, folder / "model.gguf"
    if kind == "inside":
        return tiny.write(path, arch="qwen35", n_layer=4, n_heads=1), "mtp"
    if kind == "beside":
        tiny.write(folder / "mtp-model.gguf", n_heads=1, trunk=False, **hybrid)
        return tiny.write(path, **hybrid), "mtp-model"
    if kind == "assistant":
        tiny_gemma4.write_assistant(folder / "model-assistant.gguf")
        return tiny_gemma4.write(path, n_layer=20), "model-assistant"
    tiny_dflash.write(folder / "a-dflash.gguf", layers=[3, 99])
    tiny_dflash.write(folder / "b-dspark-draft.gguf", markov=True, confidence=True)
    return tiny.write(path, n_layer=40), "b-dspark-draft"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("kind", ["inside", "beside", "assistant", "dspark"])
def test_auto_finds_it_tries_it_and_drafts(open_llama, tmp_path, monkeypatch, kind):
    """One that does not fit is left out, and named; the text is plain decoding's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path, name = written(kind, tmp_path)
    llm, plain = open_llama(path, draft="auto", trust=False), open_llama(path)
    for text in (PROMPT, [20, 21]):
        assert ask(llm, text, 40).ids == ask(plain, text, 40).ids
        assert llm.last_speculation["draft"] == f"lookup+{name}"
        assert llm.last_speculation["drafted"] > 0
    assert ("a-dflash" in str(llm.assembly.parts.notes)) is (kind == "dspark")


# -- what cannot be used ----------------------------------------------------------------------------------------------


def test_a_head_that_cannot_run_is_refused_with_the_reason(open_llama, tiny_target, monkeypatch):
    with pytest.raises(UnsupportedModel, match="no next-token head"):
        open_llama(tiny_target, draft="mtp")
    headed = msgspec.structs.replace(facts_of(tiny_target), heads=1, architecture="glm4")
    monkeypatch.setattr("pyspec.gguf.kinds.facts_of", lambda _path: headed)
    with pytest.raises(UnsupportedModel, match=r"\.gguf: .* no graph for it in glm4 models"):
        open_llama(tiny_target, draft="mtp")


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
def test_a_head_of_another_architecture_is_refused(open_llama, beside, tiny_folder, arch):
    other = tiny.write(tiny_folder / f"other-{arch}.gguf", arch=arch)
    with pytest.raises((DraftMismatch, UnsupportedModel), match="is of qwen35"):
        open_llama(other, draft=beside)


@pytest.mark.parametrize("what", ["another model", "another width"])
def test_an_assistant_that_does_not_fit_is_refused(open_llama, gemma, tiny_target, tmp_path, what):
    hidden = 32 if what == "another model" else 64
    draft = tiny_gemma4.write_assistant(tmp_path / "assistant.gguf", hidden=hidden)
    with pytest.raises(DraftMismatch, match=r"assistant\.gguf"):
        open_llama(tiny_target if what == "another model" else gemma, draft=draft)
