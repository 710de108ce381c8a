"""Next-token heads (MTP) and Gemma 4 assistants: they draft what llama.cpp's own calls give for the text alone."""

from functools import partial

import llama_cpp
import msgspec
import pytest
from helpers import tiny, tiny_gemma4
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


# -- in the target's file ----------------------------------------------------------------------------------------------


def test_auto_takes_the_head_and_some_of_its_drafts_are_accepted(open_llama, headed):
    llm, accepted = open_llama(headed, draft="auto"), 0
    for text in (PROMPT, [20, 21]):
        ask(llm, text, 60)
        accepted += llm.last_speculation["accepted"]
        assert llm.last_speculation["draft"] == "lookup+mtp"
    assert accepted > 0


def test_a_head_that_cannot_run_is_refused_with_the_reason(open_llama, tiny_target, monkeypatch):
    with pytest.raises(UnsupportedModel, match="no next-token head"):
        open_llama(tiny_target, draft="mtp")
    headed = msgspec.structs.replace(facts_of(tiny_target), heads=1, architecture="glm4")
    monkeypatch.setattr("pyspec.gguf.kinds.facts_of", lambda _path: headed)
    with pytest.raises(UnsupportedModel, match=r"\.gguf: .* no graph for it in glm4 models"):
        open_llama(tiny_target, draft="mtp")


# -- in a file of its own ----------------------------------------------------------------------------------------------


def test_a_target_without_the_layer_takes_one_beside_it(open_llama, tmp_path, own_cache):
    """As `auto` finds it, after its trial with the model; the text is plain decoding's."""
    kind = {"arch": "qwen35", "n_layer": 40}
    alone = tiny.write(tmp_path / "model.gguf", **kind)
    head = tiny.write(tmp_path / "mtp-model.gguf", n_heads=1, trunk=False, **kind)
    llm = open_llama(alone, draft="auto", length="fixed:3", trust=False)
    plain = open_llama(alone)
    for text in (PROMPT, [20, 21]):
        assert ask(llm, text, 40).ids == ask(plain, text, 40).ids
        assert llm.last_speculation["draft"] == f"lookup+{head.stem}"
        assert llm.last_speculation["drafted"] > 0


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
def test_a_head_of_another_architecture_is_refused(open_llama, beside, tiny_folder, arch):
    other = tiny.write(tiny_folder / f"other-{arch}.gguf", arch=arch)
    with pytest.raises((DraftMismatch, UnsupportedModel), match="is of qwen35"):
        open_llama(other, draft=beside)


# -- Gemma 4 assistants ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_cache")
def test_an_assistant_is_tried_and_found_beside_its_target(open_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tiny_gemma4.write(tmp_path / "model.gguf", n_layer=20)
    tiny_gemma4.write_assistant(tmp_path / "model-assistant.gguf")
    llm = open_llama(model, draft="auto", trust=False)
    ask(llm, PROMPT, 20)
    assert llm.last_speculation["draft"] == "lookup+model-assistant"
    assert llm.last_speculation["drafted"] > 0


@pytest.mark.parametrize("what", ["another model", "another width"])
def test_an_assistant_that_does_not_fit_is_refused(open_llama, gemma, tiny_target, tmp_path, what):
    hidden = 32 if what == "another model" else 64
    draft = tiny_gemma4.write_assistant(tmp_path / "assistant.gguf", hidden=hidden)
    with pytest.raises(DraftMismatch, match=r"assistant\.gguf"):
        open_llama(tiny_target if what == "another model" else gemma, draft=draft)
