"""A prompt's state on disk: from it comes the same text, and nothing of a file that is not of this model and these tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from answers import GREEDY, ask
from systems import make_fifo

from pyspec.errors import OptionError
from pyspec.llama import SpeculativeLlama
from pyspec.prompt_cache import PromptCache

PROMPT = [tiny.A + n % 20 for n in range(60)]
Open = Callable[..., SpeculativeLlama]


@pytest.fixture
def kept(open_llama: Open, tiny_target: Path, tmp_path: Path) -> tuple[Path, list[int]]:
    """A cache of PROMPT, and the answer to it."""
    llm = open_llama(tiny_target)
    cache = PromptCache(llm, tmp_path / "prompt.bin")
    assert cache.restore(PROMPT) == 0
    ids = []
    for step in llm.steps(PROMPT, GREEDY, max_tokens=12):
        if not ids:
            cache.keep(PROMPT)
        ids += [token.id for token in step.tokens]
    return tmp_path / "prompt.bin", ids


@pytest.mark.parametrize("draft", ["none", "model", "eagle3"])
def test_the_prompt_is_not_read_again(
    open_llama: Open,
    tiny_target: Path,
    tiny_draft: Path,
    tiny_eagle3: Path,
    kept: tuple[Path, list[int]],
    draft: str,
) -> None:
    """Another process' object answers the same without reading, whatever drafts for it."""
    path, wanted = kept
    named = {"none": "none", "model": tiny_draft, "eagle3": tiny_eagle3}[draft]
    llm = open_llama(tiny_target, draft=named)
    assert PromptCache(llm, path).restore(PROMPT) == len(PROMPT)
    assert ask(llm, PROMPT, 12).ids == wanted
    assert llm.last_speculation["prompt_kept"] == len(PROMPT) - 1


def test_a_longer_prompt_goes_on_from_it(
    open_llama: Open, tiny_target: Path, kept: tuple[Path, list[int]]
) -> None:
    """The same beginning is kept, the rest is read, and the file grows."""
    path, _ = kept
    longer = [*PROMPT, tiny.A, tiny.A + 1, tiny.A + 2]
    llm, before = open_llama(tiny_target), path.stat().st_size
    cache = PromptCache(llm, path)
    assert cache.restore(longer) == len(PROMPT)
    assert ask(llm, longer, 1).ids == ask(open_llama(tiny_target), longer, 1).ids
    cache.keep(longer)
    assert path.stat().st_size > before


@pytest.mark.parametrize("fault", ["weights", "type", "state", "tokens", "cut", "other prompt"])
def test_what_does_not_belong_is_not_used(
    open_llama: Open, tiny_target: Path, tiny_draft: Path, kept: tuple[Path, list[int]], fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Another model, another KV type, a damaged or another text's file: said, and read anew."""
    path, _ = kept
    data = bytearray(path.read_bytes())
    if fault == "state":
        data[-5] ^= 1
    elif fault == "tokens":
        line = bytes(data).split(b"\n", 2)[1]
        head = json.loads(line)
        head["tokens"][0] = 10**6
        data = bytearray(bytes(data).replace(line, json.dumps(head).encode()))
    elif fault == "cut":
        del data[-100:]
    path.write_bytes(data)
    options = {"type_k": 0} if fault == "type" else {}
    llm = open_llama(tiny_draft if fault == "weights" else tiny_target, **options)
    prompt = [tiny.A + 9, *PROMPT[1:]] if fault == "other prompt" else PROMPT
    assert PromptCache(llm, path).restore(prompt) == 0
    assert "prompt.bin" in caplog.text
    ask(llm, prompt, 3)
    assert llm.last_speculation["prompt_kept"] == 0


def test_other_files_are_left_alone(open_llama: Open, tiny_target: Path, tmp_path: Path) -> None:
    """A slip of the file name does not cost the user's notes."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    llm = open_llama(tiny_target)
    with pytest.raises(OptionError, match="not a prompt cache"):
        PromptCache(llm, path).restore(PROMPT)
    assert path.read_text() == "dear diary"


def test_a_file_that_cannot_be_written_is_named(
    open_llama: Open, tiny_target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the user named it, with the reason in words."""
    cache = PromptCache(open_llama(tiny_target), tmp_path / "nowhere" / "prompt.bin")
    cache.keep(PROMPT)
    assert caplog.messages == [
        "the prompt cache prompt.bin is not written: No such file or directory"
    ]


def test_a_pipe_is_no_cache(open_llama: Open, tiny_target: Path, tmp_path: Path) -> None:
    """It would be waited for."""
    make_fifo(tmp_path / "pipe")
    llm = open_llama(tiny_target, n_ctx=256)
    with pytest.raises(OptionError, match="not a regular file"):
        PromptCache(llm, tmp_path / "pipe").restore([5, 6])


def test_without_a_file_nothing_is_done(open_llama: Open, tiny_target: Path) -> None:
    """None is no cache."""
    cache = PromptCache(open_llama(tiny_target), None)
    assert cache.restore(PROMPT) == 0
    cache.keep(PROMPT)
