"""Tables of characters: those for which llama.cpp would end the process are refused. tests/fuzz walks what is let through."""

import struct

import pytest
from fuzz import bases
from helpers.make_gguf import ARR, STR, U8

from pyspec.errors import ModelInvalid
from pyspec.gguf.header import read_header
from pyspec.gguf.vocabulary import DEEPEST, fault_of

SOUND = bytes(bases.sound("charsmap").kv["tokenizer.ggml.precompiled_charsmap"][1][1])
ROOT = 256


def table(nodes, texts=b"x\0", size=1024):
    found = [nodes.get(i, 0) for i in range(size)]
    return struct.pack("<I", 4 * size) + struct.pack(f"<{size}I", *found) + texts


def step(at, byte, to, *, ends=False):
    """The node that a byte leads to, with the place of its own children."""
    node = at ^ byte
    return {node: byte | (node ^ to) << 10 | (256 if ends else 0)}


@pytest.mark.parametrize(("bad", "named"), [
    (SOUND, ""), (b"", "too short"), (SOUND[:4], "too short"), (SOUND[:-6], "before its texts"),
    (SOUND[:-5], "before its texts"), (SOUND[:-1], "no end"),
    (struct.pack("<I", 2**32 - 1) + SOUND[4:], "before its texts"),
    *((table(nodes, size=size), "beyond") for nodes, size in (
        ({0: 2000 << 10}, 1024), ({0: 800 << 10}, 1000), ({0: 8 << 10 | 1 << 9}, 1024))),
    *((table({0: ROOT << 10, **step(ROOT, 97, 1 << 20, ends=ends)}), "beyond") for ends in (False, True)),
    (table({0: ROOT << 10, **step(ROOT, 97, 512, ends=True), 512: 1 << 31 | 1}), ""),
    (table({0: ROOT << 10, **step(ROOT, 97, 512, ends=True), 512: 1 << 31 | 2}), "no end"),
    (table({0: ROOT << 10, **step(ROOT, 97, ROOT)}), f"more than {DEEPEST}"),
    (bytes(2 << 20), "larger"),
])  # fmt: skip
def test_tables_that_llama_cpp_ends_the_process_for(bad, named):
    assert named in fault_of(bad) if named else fault_of(bad) == ""


@pytest.mark.parametrize("entry", [(U8, list(SOUND[:-5])), (STR, ["x"])])
def test_a_file_with_such_a_table_is_refused(entry, tmp_path):
    made = bases.sound("charsmap")
    made.kv["tokenizer.ggml.precompiled_charsmap"] = (ARR, entry)
    path = made.write(tmp_path / "m.gguf")
    with pytest.raises(ModelInvalid, match="precompiled_charsmap"):
        read_header(path)
