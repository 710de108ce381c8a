"""Rules for models: layers, heads, vocabulary, split files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from helpers.make_gguf import (
    ARR,
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
from pyspec.gguf.header import read_header
from pyspec.gguf.reader import parse_header

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, made: Gguf, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(made.build())
    return path


@pytest.mark.parametrize(
    ("key", "entry", "named"),
    [
        ("llama.block_count", (U32, 0), "block_count is 0"),
        ("llama.block_count", (U32, 513), "block_count is 513"),
        ("llama.block_count", (U32, 2**20), "block_count"),
        ("llama.block_count", (U32, 2**32 - 1), "block_count"),
        ("llama.block_count", (STR, "1"), "block_count"),
        ("llama.block_count", (F32, 1.0), "block_count"),
        ("llama.attention.head_count", (U32, 0), "head_count is 0"),
        ("llama.attention.head_count", (ARR, (U32, [0, 0])), "head_count is 0"),
        ("general.architecture", (STR, ""), "architecture is missing"),
        ("general.architecture", (U32, 1), "architecture is missing"),
        ("tokenizer.ggml.tokens", (STR, "x"), "not a list of strings"),
        ("tokenizer.ggml.tokens", (ARR, (U32, [1])), "not a list of strings"),
        ("tokenizer.ggml.scores", (ARR, (F32, [0.0])), "scores is shorter"),
        ("tokenizer.ggml.token_type", (ARR, (I32, [1])), "token_type is shorter"),
        ("llama.shortconv.l_cache", (U32, 2**32 - 1), "recurrent state"),
        ("llama.wkv.head_size", (U32, 2**31), "recurrent state"),
        ("split.count", (U16, 5000), "split.count is 5000"),
        ("split.count", (STR, "2"), "split.count"),
    ],
)
def test_contradiction_is_refused(
    key: str, entry: tuple[int, object], named: str, tmp_path: Path
) -> None:
    """A value that llama.cpp would abort on, or that makes no model, is refused by name."""
    made = tiny_llama()
    made.kv[key] = entry
    with pytest.raises(ModelInvalid, match=named):
        read_header(write(tmp_path, made))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "b", "a"], "tokens 0 and 2 are the same"),
        (["a\0x", "a\0y"], "tokens 0 and 1 are the same"),
        (["", "[EMPTY_0]"], "tokens 0 and 1 are the same"),
    ],
)
def test_duplicate_tokens_are_refused(words: list[str], named: str, tmp_path: Path) -> None:
    """Tokens that llama.cpp reads as one string are refused with both ids."""
    made = tiny_llama()
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, words))
    with pytest.raises(ModelInvalid, match=named):
        read_header(write(tmp_path, made))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["wa", "w", "b"], None),
        (["wa", "b"], "begin with .*w"),
        ([r"\x77a", "w", r"\n", "\na", r"\\", r"\\a"], None),
        ([r"\nab", "n"], "begin with"),
        ([r"\xe4\xbd", r"\xe4", r"\x", r"\x1", "", "é", r"\xc3"], None),
        (["é", r"\xa9"], "begin with"),
    ],
)
def test_a_trie_of_bytes_has_an_end(words: list[str], named: str | None, tmp_path: Path) -> None:
    """llama.cpp's RWKV tokenizer never ends at a byte that begins tokens and is none."""
    made = tiny_llama()
    made.kv["tokenizer.ggml.model"] = (STR, "rwkv")
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, words))
    if named is None:
        assert read_header(write(tmp_path, made)).vocab_size == len(words)
        return
    with pytest.raises(ModelInvalid, match=named):
        read_header(write(tmp_path, made))


def test_empty_tokens_are_no_duplicates(tmp_path: Path) -> None:
    """llama.cpp names empty tokens by their id, so several are allowed."""
    made = tiny_llama()
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, ["", "", "a"]))
    assert read_header(write(tmp_path, made)).vocab_size == 3


def test_recurrent_model_may_have_no_heads(tmp_path: Path) -> None:
    """A state-space model states 0 heads and is a valid file."""
    made = tiny_llama()
    made.kv["llama.attention.head_count"] = (U32, 0)
    made.kv["llama.ssm.state_size"] = (U32, 16)
    assert read_header(write(tmp_path, made)).architecture == "llama"


def test_heads_per_layer_may_hold_zeros(tmp_path: Path) -> None:
    """A list of head counts is fine while some layer has heads."""
    made = tiny_llama()
    made.kv["llama.attention.head_count"] = (ARR, (U32, [0, 2]))
    assert read_header(write(tmp_path, made)).vocab_size == 263


def test_model_without_tensors_is_refused(tmp_path: Path) -> None:
    made = tiny_llama()
    made.tensors = []
    with pytest.raises(ModelInvalid, match="no tensors"):
        read_header(write(tmp_path, made))


def test_matrices_alone_need_no_architecture(tmp_path: Path) -> None:
    """Without the rules for models a GGUF of matrices alone is read."""
    made = Gguf({}, [Tensor("w", (2,), b"\0" * 8)])
    assert parse_header(write(tmp_path, made)).tensors[0].shape == (2,)


def test_split_file_is_joined(tmp_path: Path) -> None:
    """The first part stands for all: tensors of every part, and their paths."""
    paths = split(tmp_path)
    header = read_header(paths[0])
    assert header.parts == tuple(paths)
    assert len(header.tensors) == 11


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(ModelInvalid, match=r"big-00003-of-00003.* is missing"):
        read_header(paths[0])


@pytest.mark.parametrize("name", ["other.gguf", "big-1-of-3.gguf", "big-00001-of-00004.gguf"])
def test_renamed_first_part_is_refused(name: str, tmp_path: Path) -> None:
    """A first part whose name has lost the pattern is refused, saying what it must be like."""
    paths = split(tmp_path)
    paths[0].rename(tmp_path / name)
    with pytest.raises(ModelInvalid, match=r"NAME-00001-of-00003\.gguf"):
        read_header(tmp_path / name)


def test_swapped_parts_are_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    shutil.copy(paths[1], paths[2])
    with pytest.raises(ModelInvalid, match="part 3 of 3"):
        read_header(paths[0])


def test_later_part_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="NAME-00001-of-00003"):
        read_header(split(tmp_path)[1])


def test_lost_tensors_of_parts_are_noticed(tmp_path: Path) -> None:
    """Parts that hold fewer tensors than stated are refused."""
    paths = split(tmp_path)
    made = Gguf({"split.no": (U16, 2), "split.count": (U16, 3)}, [])
    write(tmp_path, made, paths[2].name)
    with pytest.raises(ModelInvalid, match=r"hold 8 tensors .* not 11"):
        read_header(paths[0])


def test_one_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    """Though there are as many tensors as the first part says: llama.cpp would take either."""
    whole = tiny_llama()
    first, *others = whole.tensors
    paths = in_parts(whole, tmp_path, [[first, *others[:-1]], [first]])
    with pytest.raises(ModelInvalid, match=r"hold 11 tensors \(10 names\)"):
        read_header(paths[0])


def test_a_groups_two_states_count(tmp_path: Path) -> None:
    """Each group of a Mamba 2 has an input and an output: with one of them, this state would be just within the limit."""
    made = tiny_llama()
    for key, value in (("conv_kernel", 1 << 6), ("state_size", 1 << 10), ("group_count", 1 << 10)):
        made.kv[f"llama.ssm.{key}"] = (U32, value)
    with pytest.raises(ModelInvalid, match=f"{1 << 27} numbers"):
        read_header(write(tmp_path, made))


@pytest.mark.parametrize("key", ["split.prefix", "general.name"])
def test_path_in_metadata_of_split_file_is_refused(key: str, tmp_path: Path) -> None:
    made = tiny_llama()
    made.kv |= {
        "split.no": (U16, 0),
        "split.count": (U16, 2),
        key: (STR, "../../etc/passwd"),
    }
    path = write(tmp_path, made, "big-00001-of-00002.gguf")
    with pytest.raises(ModelInvalid, match="holds a path"):
        read_header(path)
