"""Cases 1 to 12 of `cases.py`, bad model files: a typed error from the class, one sentence from the command."""

import os
import socket
import struct
from pathlib import Path

import pytest
from faults.cases import load
from helpers.make_gguf import ARR, STR, U32, says, tiny_llama

from pyspec.errors import (
    DraftMismatch,
    ModelInvalid,
    ModelNotFound,
    ModelRejected,
    ModelUnreadable,
    PyspecError,
    TemplateError,
)

pytestmark = pytest.mark.usefixtures("own_cache")


def changed(change):
    made = tiny_llama()
    change(made)
    return made.build()


def _words(words):
    return changed(says("tokenizer.ggml.tokens", ARR, (STR, words)))


def _nan(made):
    made.tensors[2].data = struct.pack("<f", float("nan")) + made.tensors[2].data[4:]


GOOD = tiny_llama()
N_WORDS = len(GOOD.kv["tokenizer.ggml.tokens"][1][1])
FILES: list[tuple[str, bytes, type[PyspecError]]] = [
    ("03 random", bytes(range(256)) * 8, ModelInvalid),
    ("04 entries", changed(lambda m: setattr(m, "n_kv", 2**60)), ModelInvalid),
    ("05 no layers", changed(says("llama.block_count", U32, 0)), ModelInvalid),
    ("05 equal words", _words(["<unk>", "<s>", "</s>"] + ["a"] * (N_WORDS - 3)), ModelInvalid),
    ("05 empty words", _words([""] * N_WORDS), ModelInvalid),
    ("06 last byte", GOOD.build()[:-1], ModelInvalid),
    ("07 offset", changed(lambda m: setattr(m.tensors[1], "offset", 2**64 - 32)), ModelInvalid),
    ("08 nan", changed(_nan), ModelRejected),
    ("12 climbing part", changed(lambda m: m.kv.update({"split.count": (U32, 2), "general.name": (STR, "../x")})), ModelInvalid),
    ("12 missing part", changed(lambda m: m.kv.update({"split.count": (U32, 2), "split.no": (U32, 0)})), ModelInvalid),
]  # fmt: skip
"""One or two of each case; every broken header is in tests/gguf."""


@pytest.mark.parametrize(("raw", "error"), [c[1:] for c in FILES], ids=[c[0] for c in FILES])
def test_bad_file(raw, error, tmp_path, command):
    path = tmp_path / "bad-00001-of-00002.gguf"
    path.write_bytes(raw)
    with pytest.raises(error):
        load(path)
    assert command(path)[0] == 1


@pytest.mark.parametrize("role", ["draft", "companion"])
def test_bad_side_model(role, tmp_path):
    sound, path = tmp_path / "sound.gguf", tmp_path / "side.gguf"
    tiny_llama().write(sound)
    path.write_bytes(changed(_nan))
    with pytest.raises(ModelRejected):
        load(sound, **{"draft": str(sound), "companion": "none"} | {role: str(path)})


@pytest.mark.parametrize("kind", ["01 missing", "01 folder", "02 fifo", "02 socket", "02 device"])
def test_no_file(kind, tmp_path, command):
    path = tmp_path / "x.gguf"
    if "folder" in kind:
        path.mkdir()
    elif "fifo" in kind:
        os.mkfifo(path)
    elif "device" in kind:
        path = Path("/dev/zero")
    elif "socket" in kind:
        os.chdir(tmp_path)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("x.gguf")
    with pytest.raises(ModelNotFound if "missing" in kind else ModelUnreadable):
        load(path)
    assert command(path)[0] == 1


def test_09_file_that_changes_while_open(tmp_path):
    """Without mmap the weights are in memory: a file cut short meanwhile changes nothing."""
    path = GOOD.write(tmp_path / "m.gguf")
    with load(path, use_mmap=False) as llm:
        before = llm.create_completion("abcd", max_tokens=4, temperature=0)["choices"]
        os.truncate(path, 100)
        llm.reset()
        assert llm.create_completion("abcd", max_tokens=4, temperature=0)["choices"] == before


def test_10_hostile_template(tmp_path, command):
    """It is no harm to load; a chat that needs it is one error, and the model goes on."""
    hostile = says("tokenizer.chat_template", STR, "{{ 'a'*10**9 }}")
    path = tmp_path / "m.gguf"
    path.write_bytes(changed(hostile))
    with load(path) as llm:
        with pytest.raises(TemplateError):
            llm.create_chat_completion([{"role": "user", "content": "a"}])
        assert llm.create_completion("a", max_tokens=1)
    assert command(path)[0] == 0


def test_11_another_vocabulary(tmp_path, tiny_target, command):
    """Draft and companion are refused by what differs first."""
    path = GOOD.write(tmp_path / "draft.gguf")
    with pytest.raises(DraftMismatch, match="token before a text"):
        load(tiny_target, draft=str(tiny_target), companion=str(path))
    code, said = command(tiny_target, "--draft", str(tiny_target), "--companion", str(path))
    assert (code, "token before a text" in said) == (1, True)
    code, said = command(tiny_target, "--draft", str(path))
    assert (code, "token before a text" in said) == (1, True)
