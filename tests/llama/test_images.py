"""Chats with images by llama-cpp-python's own handlers: the text is `llama_cpp.Llama`'s, with any draft."""

from contextlib import closing

import llama_cpp
import pytest
from helpers import tiny, tiny_eagle, tiny_mmproj
from llama_cpp.llama_chat_format import Llava15ChatHandler

from pyspec.errors import UnsupportedModel
from pyspec.llama.speculative import SpeculativeLlama

EXACT = {"n_ctx": 512, "n_threads": 1, "flash_attn": False, "verbose": False}
PICTURES = (0, 1, None, 0)


@pytest.fixture(scope="module")
def projector(tiny_folder):
    return tiny_mmproj.write(tiny_folder / "mmproj.gguf")


@pytest.fixture(scope="module")
def target(tiny_folder):
    return tiny.write(tiny_folder / "sees.gguf", tokens=tiny.ASCII, n_layer=4)


@pytest.fixture(autouse=True)
def _silent(capfd):
    """The handlers' library prints what it does."""
    yield
    capfd.readouterr()


def seeing(kind, target, projector, **more):
    handler = Llava15ChatHandler(clip_model_path=str(projector), verbose=False)
    if kind is SpeculativeLlama:
        more = {"draft": "none", "trust": True, **more}
    return kind(str(target), chat_handler=handler, **EXACT, **more)


def asked(llm, picture, n=24):
    content = [{"type": "text", "text": "what is it?"}]
    if picture is not None:
        url = {"url": tiny_mmproj.picture(picture)}
        content.append({"type": "image_url", "image_url": url})
    messages = [{"role": "user", "content": content}]
    answer = llm.create_chat_completion(messages, max_tokens=n, temperature=0.0, repeat_penalty=1.0)
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def wanted(target, projector):
    with closing(seeing(llama_cpp.Llama, target, projector)) as llm:
        return [asked(llm, picture) for picture in PICTURES]


def drafts(folder):
    small = tiny.write(folder / "sees-small.gguf", tokens=tiny.ASCII, n_layer=1)
    head = tiny_eagle.write(folder / "sees-head.gguf", tokens=tiny.ASCII)
    return {"none": "none", "lookup": "lookup", "model": str(small), "head": str(head)}


@pytest.mark.parametrize("name", ["none", "lookup", "model", "head"])
def test_answers_are_those_without_drafts(target, projector, wanted, tiny_folder, name):
    assert len(set(wanted)) == 3
    draft = drafts(tiny_folder)[name]
    with seeing(SpeculativeLlama, target, projector, draft=draft, length="fixed:3") as llm:
        drafted = []
        for picture, text in zip(PICTURES, wanted, strict=True):
            assert asked(llm, picture) == text
            drafted.append(llm.last_speculation["drafted"] > 0)
        assert drafted[-1] == (name == "lookup")
        assert drafted[2] or name == "none"


def test_a_text_is_not_taken_for_a_picture(target, projector):
    """Whatever the buffer of ids held at the picture's place before, the text is read from there on."""
    with seeing(SpeculativeLlama, target, projector) as llm:
        asked(llm, None, 1)
        text, kept = llm.input_ids[: llm.n_tokens].tolist(), []
        for ids in (text, [0] * len(text)):
            llm.reset()
            llm.input_ids[: len(ids)] = ids
            asked(llm, 0, 1)
            llm.create_completion(text, max_tokens=1)
            kept.append(llm.session.statistics.prompt_kept)
        assert 0 < kept[0] == kept[1] < len(text) - tiny_mmproj.N_ROWS


def test_a_picture_stays_for_a_text_that_goes_on(target, projector):
    """By the ids that the context says it holds, as in llama-cpp-python."""
    said, how = [], {"max_tokens": 12, "temperature": 0.0, "repeat_penalty": 1.0}
    for kind in (llama_cpp.Llama, SpeculativeLlama):
        with closing(seeing(kind, target, projector)) as llm:
            asked(llm, 1, 4)
            ids = llm.input_ids[: llm.n_tokens].tolist()
            longer = [*ids, *llm.tokenize(b" and", add_bos=False)]
            said.append(llm.create_completion(longer, **how)["choices"][0]["text"])
    assert said[0] == said[1]


@pytest.mark.parametrize("arch", ["qwen35", "lfm2", "mamba"])
def test_what_cannot_go_back_is_refused(tmp_path, projector, arch):
    """A picture would be read again as tokens; texts are answered as before."""
    target = tiny.write(tmp_path / f"{arch}.gguf", arch=arch, tokens=tiny.ASCII, n_layer=4)
    with seeing(SpeculativeLlama, target, projector) as llm:
        before = asked(llm, None)
        with pytest.raises(UnsupportedModel, match="losing the image"):
            asked(llm, 0)
        assert asked(llm, None) == before


def test_a_prompt_that_ends_with_a_picture_is_refused(target, projector):
    """The last position is read again for its logits, and holds no token."""
    with seeing(SpeculativeLlama, target, projector) as llm:
        llm.eval([5, 6, 7])
        llm.n_tokens += tiny_mmproj.N_ROWS  # as handlers count rows that they decoded
        prompt = llm.input_ids[: llm.n_tokens].tolist()
        with pytest.raises(UnsupportedModel, match="end the prompt with text"):
            llm.create_completion(prompt, max_tokens=4)
