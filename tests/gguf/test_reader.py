"""The header reader: every broken header is refused and its fault named."""

import ctypes
import os
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from helpers.make_gguf import ARR, BOOL, STR, U32, U64, Gguf, Tensor, says, string, tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lc

from pyspec.errors import ModelError, ModelInvalid, ModelNotFound, ModelUnreadable
from pyspec.gguf.header import read_header
from pyspec.gguf.reader import GGML_TYPES, Array, parse_header

Change = Callable[[Gguf], None]


def put(**fields):
    def change(g):
        for name, content in fields.items():
            setattr(g, name, content)

    return change


def raw_kv(raw):
    def change(g):
        g.extra_kv, g.n_kv = raw, len(g.kv) + 1

    return change


def tensor(**fields):
    def change(g):
        for name, content in fields.items():
            setattr(g.tensors[1], name, content)

    return change


U = struct.Struct("<I").pack
Q = struct.Struct("<Q").pack

BROKEN: dict[str, tuple[Change, str]] = {
    "magic": (put(magic=b"GGML"), "not a GGUF"),
    "version 1": (put(version=1), "version is 1"),
    "version 4": (put(version=4), "version is 4"),
    "big-endian": (put(version=3 << 24), "big-endian"),
    "n_kv -1": (put(n_kv=2**64 - 1), "number of metadata entries"),
    "n_kv above the cap": (put(n_kv=4097), "number of metadata entries"),
    "n_kv one too many": (put(n_kv=15), "the name of tensor 0"),
    "n_tensors -1": (put(n_tensors=2**64 - 1), "number of tensors"),
    "n_tensors above the cap": (put(n_tensors=65537), "number of tensors"),
    "key of 2^62 bytes": (raw_kv(Q(2**62)), "metadata key 14"),
    "empty key": (raw_kv(string("") + U(U32) + U(1)), "key 14 is empty"),
    "duplicate key": (raw_kv(string("llama.block_count") + U(U32) + U(1)), "duplicate"),
    "string of 2^62 bytes": (raw_kv(string("x") + U(STR) + Q(2**62)), "'x' claims"),
    "string past the end": (raw_kv(string("x") + U(STR) + Q(2**20)), "past the end"),
    "unknown type": (raw_kv(string("x") + U(13)), "unknown type 13"),
    "array of unknown type": (raw_kv(string("x") + U(ARR) + U(77) + Q(1)), "nested type 77"),
    "nested array": (raw_kv(string("x") + U(ARR) + U(ARR) + Q(1)), "nested type 9"),
    "array of 2^40 numbers": (raw_kv(string("x") + U(ARR) + U(U64) + Q(2**40)), "'x' reaches"),
    "array of 2^40 strings": (raw_kv(string("x") + U(ARR) + U(STR) + Q(2**40)), "'x' reaches"),
    "array with a string of 2^62": (
        raw_kv(string("x") + U(ARR) + U(STR) + Q(1) + Q(2**62)),
        "string of 'x'",
    ),
    "alignment 0": (says("general.alignment", U32, 0), "power of two"),
    "alignment 3": (says("general.alignment", U32, 3), "power of two"),
    "alignment 8192": (says("general.alignment", U32, 8192), "power of two"),
    "alignment of another type": (says("general.alignment", BOOL, 1), "power of two"),
    "tensor name of 64 bytes": (tensor(name="x" * 64), "64 bytes"),
    "tensor name twice": (tensor(name="token_embd.weight"), "two tensors"),
    "5 dimensions": (tensor(shape=(32, 1, 1, 1, 1)), "5 dimensions"),
    "dimension -1": (tensor(shape=(2**64 - 1,)), "dimension of"),
    "product of dimensions overflows": (tensor(shape=(2**32, 2**32)), "overflows"),
    "product wraps to 0": (tensor(shape=(2**16, 2**16, 2**16, 2**16)), "overflows"),
    "more data than the file": (tensor(shape=(2**40,)), "overlap|file ends"),
    "retired tensor type": (tensor(type=4), "unknown type 4"),
    "future tensor type": (tensor(type=43), "unknown type 43"),
    "row not a multiple of the block": (tensor(type=12), "no multiple"),
    "offset not aligned": (tensor(offset=1), "not aligned"),
    "offset 2^64-32": (tensor(offset=2**64 - 32), "file ends before tensor 'output_norm"),
    "tensors overlap": (tensor(offset=0), "overlap"),
}


def broken(folder, change):
    made = change if isinstance(change, Gguf) else tiny_llama()
    if made is not change:
        change(made)
    return made.write(folder / "broken.gguf")


@pytest.mark.parametrize(("head", "named"), [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer.*git lfs pull"),
    (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page.*/resolve/"),
    (b"ordinary words, nothing else", "begins with b'ordi'"),
    *((raw, "not a GGUF v2/v3 file") for raw in (b"", b"GGUF", b"\0" * 100, os.urandom(4096))),
])  # fmt: skip
def test_another_file_under_a_models_name_is_named(tmp_path, head, named):
    """As a clone without git-lfs or a browser leaves it, with what to do; or nothing that is known."""
    path = tmp_path / "model.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelInvalid, match=named):
        read_header(path)


@pytest.mark.parametrize(("change", "named"), BROKEN.values(), ids=BROKEN)
def test_broken_header_is_refused_by_name(change, named, tmp_path):
    with pytest.raises(ModelInvalid, match=named) as caught:
        read_header(broken(tmp_path, change))
    assert "broken.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def peak_of_refusal(path, named):
    tracemalloc.start()
    with pytest.raises(ModelInvalid, match=named):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", [k for k in BROKEN if "2^" in k])
def test_huge_claims_cost_no_memory(name, tmp_path):
    assert peak_of_refusal(broken(tmp_path, BROKEN[name][0]), None) < 8 << 20


@pytest.mark.parametrize(
    ("element", "count", "named"),
    [(U64, 2**27, "64 MiB"), (STR, 2**26, "64 MiB"), (STR, 2**21, "64 MiB")],
)
def test_header_cap_holds_in_large_sparse_files(element, count, named, tmp_path):
    """A file that is truly large may still not have a header above 64 MiB, nor cost its size."""
    path = broken(tmp_path, raw_kv(string("x") + U(ARR) + U(element) + Q(count)))
    if count == 2**21:  # believable: few enough, but each as long as a string may be
        with path.open("r+b") as file:
            start = path.read_bytes().index(Q(count)) + 8
            for i in range(65):
                file.seek(start + i * ((1 << 20) + 8))
                file.write(Q(1 << 20))
    os.truncate(path, 4 << 30)
    assert peak_of_refusal(path, named) < 8 << 20


@pytest.mark.parametrize("cut", [*range(64), 64 - 1e-9])
def test_truncated_file_is_refused(cut, tmp_path, tiny, tiny_bytes):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_bytes[: int(len(tiny_bytes) * cut / 64)])
    data = parse_header(tiny).tensors[0].offset
    named = (
        "file ends before tensor.*models pull"
        if path.stat().st_size > data
        else "past the end|not a GGUF"
    )
    with pytest.raises(ModelInvalid, match=named):
        read_header(path)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("name", "error", "named"), [
    ("absent.gguf", ModelNotFound, "absent"), ("", ModelUnreadable, "is a folder"), ("a\0b", ModelError, None),
    ("tiny.gguf/inside", ModelError, None), ("x" * 5000, ModelError, None),
])  # fmt: skip
def test_what_is_no_file(name, error, named, tmp_path):
    with pytest.raises(error, match=named):
        read_header(tmp_path / name)


def test_unreadable_file(tiny, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ModelUnreadable, match="Permission denied"):
        read_header(tiny)


def test_valid_file_is_read(tiny):
    """Arrays on demand."""
    header = read_header(tiny)
    assert (header.version, header.architecture, header.vocab_size) == (3, "llama", 263)
    assert header.metadata["llama.block_count"] == 1
    first, *_, last = header.tensors
    assert (first.name, first.shape) == ("token_embd.weight", (32, 263))
    assert header.tensor_types() == {"F32": 11}
    assert last.offset + last.nbytes == tiny.stat().st_size
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], Array)
    assert list(header.array("tokenizer.ggml.tokens"))[:3] == [b"<unk>", b"<s>", b"</s>"]
    assert list(header.array("tokenizer.ggml.token_type"))[:4] == [2, 3, 3, 6]
    with pytest.raises(KeyError):
        header.array("llama.block_count")


def test_version_2_and_alignments_are_read(tmp_path):
    assert read_header(broken(tmp_path, put(version=2))).version == 2
    made = tiny_llama()
    made.kv["general.alignment"], made.alignment = (U32, 4096), 4096
    assert read_header(broken(tmp_path, made)).tensors[0].offset % 4096 == 0


def test_strings_across_the_window_are_read(tmp_path):
    words = [b"w%d-" % i + b"x" * (i % 700) for i in range(6000)]
    made = tiny_llama()
    made.kv = {"general.architecture": (STR, "t"), "words": (ARR, (STR, words)), "n": (U32, 7)}
    path = broken(tmp_path, made)
    header = parse_header(path)
    assert header.array("words") == words
    assert header.metadata["n"] == 7


def test_control_characters_of_names_are_escaped(tmp_path):
    path = broken(tmp_path, tensor(name="\x1b[2Jx", type=77))
    with pytest.raises(ModelInvalid) as caught:
        read_header(path)
    assert "\x1b" not in str(caught.value)


def test_block_sizes_equal_llama_cpps():
    lib = lc._lib
    size, block = lib.ggml_type_size, lib.ggml_blck_size
    size.restype, block.restype = ctypes.c_size_t, ctypes.c_int64
    ours = {i: (b.elements, b.bytes) for i, b in GGML_TYPES.items()}
    theirs = {i: (block(i), size(i)) for i in range(43) if block(i)}
    assert ours == theirs


EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9)), max_size=4)


@settings(max_examples=300)
@given(edits=EDITS, cut=st.floats(0, 1))
def test_fuzzed_header_raises_only_model_errors(edits, cut, tmp_path, tiny_bytes):
    raw = bytearray(tiny_bytes)
    head = 9000  # past here is only tensor data
    for where, new in edits:
        at = int(where * head)
        raw[at : at + len(new)] = new
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(raw[: int(len(raw) * cut) if cut < 0.5 else len(raw)])
    try:
        header = read_header(path)
    except ModelError:
        return
    assert all(t.offset + t.nbytes <= header.file_size for t in header.tensors)


def test_tensors_without_elements_or_dimensions(tmp_path):
    """One number is no multiple of a block, and nothing overlaps nothing; both were found by random edits."""
    made = tiny_llama()
    made.tensors.insert(1, Tensor("empty", (0, 4)))
    assert read_header(broken(tmp_path, made)).tensors[1].nbytes == 0
    made.tensors[1] = Tensor("scalar", (), type=8)  # Q8_0
    with pytest.raises(ModelError, match="rows of 1"):
        read_header(broken(tmp_path, made))
