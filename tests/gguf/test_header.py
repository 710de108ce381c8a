"""Rules for models: layers, heads, vocabulary, split files; and what a header says of attention."""

import shutil

import pytest
from helpers import tiny
from helpers.make_gguf import (
    ARR,
    BOOL,
    F32,
    I32,
    STR,
    U16,
    U32,
    Gguf,
    Tensor,
    in_parts,
    split,
    tiny_llama,
)

from pyspec.errors import ModelInvalid
from pyspec.gguf import header as of_header
from pyspec.gguf.header import _window, header_of_parts, read_header, shape_of
from pyspec.gguf.reader import parse_header
from pyspec.machine.attention import Heads, Window, flash_pays


def write(folder, made, name="m.gguf"):
    return made.write(folder / name)


def with_words(*words):
    return {"tokenizer.ggml.tokens": (ARR, (STR, words))}


SPLIT = {"split.no": (U16, 0), "split.count": (U16, 2)}


@pytest.mark.parametrize(("entries", "named"), [
    *(({"llama.block_count": (U32, n)}, f"block_count is {n}") for n in (0, 513, 2**20, 2**32 - 1)),
    ({"llama.block_count": (STR, "1")}, "block_count"),
    ({"llama.block_count": (F32, 1.0)}, "block_count"),
    ({"llama.attention.head_count": (U32, 0)}, "head_count is 0"),
    ({"llama.attention.head_count": (ARR, (U32, [0, 0]))}, "head_count is 0"),
    ({"general.architecture": (STR, "")}, "architecture is missing"),
    ({"general.architecture": (U32, 1)}, "architecture is missing"),
    ({"tokenizer.ggml.tokens": (STR, "x")}, "not a list of strings"),
    ({"tokenizer.ggml.tokens": (ARR, (U32, [1]))}, "not a list of strings"),
    ({"tokenizer.ggml.scores": (ARR, (F32, [0.0]))}, "scores is shorter"),
    ({"tokenizer.ggml.token_type": (ARR, (I32, [1]))}, "token_type is shorter"),
    ({"llama.shortconv.l_cache": (U32, 2**32 - 1)}, "recurrent state"),
    ({"llama.wkv.head_size": (U32, 2**31)}, "recurrent state"),
    # each group of a Mamba 2 has an input and an output: with one of them, this would be just within the limit
    ({"llama.ssm.conv_kernel": (U32, 1 << 6), "llama.ssm.state_size": (U32, 1 << 10),
      "llama.ssm.group_count": (U32, 1 << 10)}, f"{1 << 27} numbers"),
    ({"split.count": (U16, 5000)}, "split.count is 5000"),
    ({"split.count": (STR, "2")}, "split.count"),
    ({**SPLIT, "split.prefix": (STR, "../../etc/passwd")}, "holds a path"),
    ({**SPLIT, "general.name": (STR, "../../etc/passwd")}, "holds a path"),
    (with_words("a", "b", "a"), "tokens 0 and 2 are the same"),
    (with_words("a\0x", "a\0y"), "tokens 0 and 1 are the same"),
    (with_words("", "[EMPTY_0]"), "tokens 0 and 1 are the same"),
])  # fmt: skip
def test_contradiction_is_refused(entries, named, tmp_path):
    made = tiny_llama()
    made.kv |= entries
    with pytest.raises(ModelInvalid, match=named):
        read_header(write(tmp_path, made, "m-00001-of-00002.gguf"))


@pytest.mark.parametrize(("entries", "n_vocab"), [
    (with_words("", "", "a"), 3),  # llama.cpp names empty tokens by their id
    # a state-space model has no heads, and in a list of head counts some layers may have none
    ({"llama.attention.head_count": (U32, 0), "llama.ssm.state_size": (U32, 16)}, 263),
    ({"llama.attention.head_count": (ARR, (U32, [0, 2]))}, 263),
])  # fmt: skip
def test_what_only_looks_like_a_contradiction(entries, n_vocab, tmp_path):
    made = tiny_llama()
    made.kv |= entries
    assert read_header(write(tmp_path, made)).vocab_size == n_vocab


def test_matrices_alone_need_no_architecture(tmp_path):
    made = Gguf({}, [Tensor("w", (2,), b"\0" * 8)])
    assert parse_header(write(tmp_path, made)).tensors[0].shape == (2,)


def test_split_file_is_joined_and_a_missing_part_named(tmp_path):
    paths = split(tmp_path)
    header = read_header(paths[0])
    assert header.parts == tuple(paths)
    assert len(header.tensors) == 11
    paths[2].unlink()
    with pytest.raises(ModelInvalid, match=r"big-00003-of-00003.* is missing"):
        read_header(paths[0])


@pytest.mark.parametrize(
    "name", ["other.gguf", "big-00001-of-00004.gguf", "big-00002-of-00003.gguf"]
)
def test_first_part_by_another_name_is_refused(name, tmp_path):
    split(tmp_path)[0].rename(tmp_path / name)
    with pytest.raises(ModelInvalid, match=r"NAME-00001-of-00003\.gguf"):
        read_header(tmp_path / name)


def test_swapped_parts_are_refused(tmp_path):
    paths = split(tmp_path)
    shutil.copy(paths[1], paths[2])
    with pytest.raises(ModelInvalid, match="part 3 of 3"):
        read_header(paths[0])


def test_lost_tensors_of_parts_are_noticed(tmp_path):
    paths = split(tmp_path)
    made = Gguf({"split.no": (U16, 2), "split.count": (U16, 3)}, [])
    write(tmp_path, made, paths[2].name)
    with pytest.raises(ModelInvalid, match=r"hold 8 tensors .* not 11"):
        read_header(paths[0])


def test_one_tensor_in_two_parts_is_refused(tmp_path):
    """Though there are as many tensors as the first part says: llama.cpp would take either."""
    whole = tiny_llama()
    first, *others = whole.tensors
    paths = in_parts(whole, tmp_path, [[first, *others[:-1]], [first]])
    with pytest.raises(ModelInvalid, match=r"hold 11 tensors \(10 names\)"):
        read_header(paths[0])


def test_heads_are_the_files(tiny_target):
    assert shape_of(tiny_target).heads == Heads(
        *[tiny.N_HEAD] * 2, *[tiny.N_EMBD // tiny.N_HEAD] * 2
    )


def test_a_file_without_heads_has_flash_attention(tiny_recurrent):
    assert shape_of(tiny_recurrent) is None
    assert flash_pays(None, 512, 1)


@pytest.mark.parametrize(("arch", "keys", "window"), [
    ("gemma3", {"sliding_window": 512}, Window(512, pytest.approx(5 / 6))),
    ("gemma3", {}, Window()),
    ("gemma3", {"sliding_window": 0}, Window()),
    (
        "gemma4",
        {"sliding_window": 512, "sliding_window_pattern": [True, True, False, True]},
        Window(512, 0.75),
    ),
    ("gpt-oss", {"sliding_window": 128, "sliding_window_pattern": 4}, Window(128, 0.75)),
    ("phi3", {"sliding_window": 2047}, Window()),
    ("llama", {"sliding_window": 4096}, Window()),
])  # fmt: skip
def test_windows_are_the_headers(tmp_path, arch, keys, window):
    path = tmp_path / "windows.gguf"
    kv = {"general.architecture": (STR, arch)}
    for key, value in keys.items():
        kind = (ARR, (BOOL, value)) if isinstance(value, list) else (U32, value)
        kv[f"{arch}.attention.{key}"] = kind
    Gguf(kv).write(path)
    assert _window(parse_header(path)) == window


def test_a_header_is_read_once_until_its_file_changes(tmp_path, monkeypatch):
    path, read = write(tmp_path, tiny_llama()), []
    monkeypatch.setattr(
        of_header, "parse_header", lambda path: read.append(path) or parse_header(path)
    )
    first = read_header(path)
    assert read_header(path) == header_of_parts(path) == first
    assert read == [path]
    write(
        tmp_path,
        Gguf(
            kv={**tiny_llama().kv, "general.name": (STR, "another")}, tensors=tiny_llama().tensors
        ),
    )
    assert read_header(path).metadata["general.name"] == "another"
