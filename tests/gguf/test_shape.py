"""A model's attention by its header: the heads, and the windows of its layers."""

from __future__ import annotations

import pytest
from helpers import tiny
from helpers.make_gguf import ARR, BOOL, STR, U32, Gguf

from pyspec.gguf.header import _window, shape_of
from pyspec.gguf.reader import parse_header
from pyspec.machine.attention import Heads, Window, flash_pays


def test_heads_are_the_files(tiny_target):
    assert shape_of(tiny_target).heads == Heads(
        *[tiny.N_HEAD] * 2, *[tiny.N_EMBD // tiny.N_HEAD] * 2
    )


def test_a_file_without_heads_has_flash_attention(tiny_recurrent):
    assert shape_of(tiny_recurrent) is None
    assert flash_pays(None, 512, 1)


@pytest.mark.parametrize(
    ("arch", "keys", "window"),
    [
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
    ],
)
def test_windows_are_the_headers(tmp_path, arch, keys, window):
    """By a flag for each layer, by a period, or by the architecture's own; others ignore the size."""
    path = tmp_path / "windows.gguf"
    kv = {"general.architecture": (STR, arch)}
    for key, value in keys.items():
        kind = (ARR, (BOOL, value)) if isinstance(value, list) else (U32, value)
        kv[f"{arch}.attention.{key}"] = kind
    path.write_bytes(Gguf(kv).build())
    assert _window(parse_header(path)) == window
