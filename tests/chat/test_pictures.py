"""Pictures in a chat: the answer is that of llama-cpp-python's handler, and a picture is read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from helpers import tiny, tiny_mmproj
from llama_cpp.llama_chat_format import MTMDChatHandler

from pyspec.chat.conversation import LlamaChat
from pyspec.errors import InputError
from pyspec.llama.options import AnswerOptions
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.chain import Sampling
from pyspec.text.pictures import part_of

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}\n{% endfor %}[assistant]"
)
EXACT: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "flash_attn": False, "verbose": False}


@pytest.fixture(scope="module")
def files(tiny_folder: Path) -> tuple[Path, Path]:
    target = tiny_folder / "looks.gguf"
    tiny.write(target, tokens=tiny.ASCII, n_layer=4, template=TEMPLATE)
    return target, tiny_mmproj.write(tiny_folder / "looks-mmproj.gguf")


@pytest.fixture(scope="module")
def chat(files: tuple[Path, Path]) -> Iterator[LlamaChat]:
    target, projector = files
    model = LlamaChat(
        lambda **_: SpeculativeLlama(str(target), draft="lookup", trust=True, **EXACT),
        mmproj=projector,
    )
    yield model
    model.close()


def turns(*pictures: int, text: str = "what is it?") -> list[Any]:
    parts: list[Any] = [part_of(tiny_mmproj.picture(each)) for each in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def said(model: LlamaChat, messages: Sequence[Any], n: int = 24) -> str:
    options = AnswerOptions(Sampling(temperature=0.0, repeat_penalty=1.0), max_tokens=n)
    return "".join(piece.text for piece in model.answer(model.prompt(messages), options))


def test_the_answer_is_the_handlers(chat: LlamaChat, files: tuple[Path, Path]) -> None:
    """Of one picture, another, two at once, and a picture in an earlier turn."""
    target, projector = files
    handler = MTMDChatHandler(clip_model_path=str(projector), verbose=False)
    plain = llama_cpp.Llama(str(target), chat_handler=handler, **EXACT)
    later = [*turns(0), {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "?"}]
    found = []
    for messages in (turns(0), turns(1), turns(0, 1), later):
        answer: Any = plain.create_chat_completion(
            messages, max_tokens=24, temperature=0.0, repeat_penalty=1.0
        )
        found.append(answer["choices"][0]["message"]["content"])
        assert said(chat, messages) == found[-1]
    assert len(set(found)) == 4


def test_a_picture_is_read_once(chat: LlamaChat, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the turns after it, and again where the text before it differs."""
    projector: Any = chat._projector
    counted: list[int] = []
    read = projector.read

    def spied(*args: Any, held: int = 0) -> int:
        counted.append(held)
        return int(read(*args, held=held))

    monkeypatch.setattr(projector, "read", spied)
    first = turns(3)
    answer = said(chat, first)
    more = [{"role": "assistant", "content": answer}, {"role": "user", "content": "and?"}]
    said(chat, [*first, *more])
    assert len(counted) == 1
    said(chat, turns(4, 3))
    assert len(counted) == 2
    said(chat, turns(4, 5))
    assert counted[2] > counted[1]


def test_a_text_after_a_picture_is_answered_as_before(chat: LlamaChat) -> None:
    plain = [{"role": "user", "content": "what is it?"}]
    before = said(chat, plain)
    said(chat, turns(0))
    assert said(chat, plain) == before
    assert chat.llm.unreadable == 0


@pytest.mark.parametrize("arch", ["mamba", "lfm2"])
def test_a_memory_that_cannot_go_back_reads_a_picture_again(
    files: tuple[Path, Path], tiny_folder: Path, arch: str
) -> None:
    """In the turns of a conversation and in others: the answers are those to each prompt alone."""
    target = tiny_folder / f"looks-{arch}.gguf"
    tiny.write(target, arch=arch, tokens=tiny.ASCII, n_layer=4, template=TEMPLATE)

    def opened() -> LlamaChat:
        how = {"draft": "none", "trust": True, **EXACT}
        return LlamaChat(lambda **_: SpeculativeLlama(str(target), **how), mmproj=files[1])

    later = [*turns(0), {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "?"}]
    asked = [turns(0), later, turns(1), turns(0)]
    one = opened()
    found = [said(one, messages, 8) for messages in asked]
    one.close()
    for messages, answer in zip(asked[1:], found[1:], strict=True):
        alone = opened()
        assert said(alone, messages, 8) == answer
        alone.close()


def test_what_has_no_projector_sees_nothing(files: tuple[Path, Path]) -> None:
    target, _ = files
    model = LlamaChat(lambda **_: SpeculativeLlama(str(target), trust=True, **EXACT))
    with pytest.raises(InputError, match="--mmproj"):
        model.prompt(turns(0))
    model.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.org/cat.png", "no addresses are fetched"),
        ("file:///etc/passwd", "no files read"),
        ("data:image/png;base64,####", "not base64"),
        ("data:image/png,abc", "not base64"),
        ("data:image/png;base64,AAAA", "unknown kind"),
    ],
)
def test_other_pictures_are_refused(chat: LlamaChat, url: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        chat.prompt([{"role": "user", "content": [part_of(url)]}])
