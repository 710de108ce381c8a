"""What attention's time depends on, by a model's header."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from pyspec.errors import PyspecError
from pyspec.gguf.header import read_header
from pyspec.gguf.reader import Array, Header
from pyspec.machine.attention import Shape, Window
from pyspec.machine.toy import Heads

_WIDEST = 1024  # heads, or numbers of one: a header may claim anything

_PERIODS = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5,
    "gpt-oss": 2, "llama4": 4, "mellum": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
# Of so many layers one sees everything, where the header does not say how many (llama.cpp, src/models). Other architectures
# ignore a window in the header, or have it in no layer.


def shape_of(path: Path) -> Shape | None:
    """Return the shape of a model's attention by its header: the widest layer's heads; None where the header does not say."""
    with contextlib.suppress(PyspecError, TypeError, ValueError, KeyError, ZeroDivisionError):
        header = read_header(path, weights=False)

        def most(key: str, otherwise: Any = None) -> int:
            found = header.of_arch(key)
            if isinstance(found, (int, type(None))):
                return int(otherwise if found is None else found)
            return max(map(int, header.array(f"{header.architecture}.{key}")))

        query = most("attention.head_count")
        width = most("embedding_length") // query
        key = most("attention.key_length", width)
        heads = Heads(
            query, most("attention.head_count_kv", query), key, most("attention.value_length", key)
        )
        if min(heads) > 0 and heads.query % heads.key_value == 0 and max(heads) <= _WIDEST:
            return Shape(heads, _window(header), most("context_length", 0))
    return None


def _window(header: Header) -> Window:
    """The window of some layers, by their pattern: a flag for each, or of how many one sees everything."""
    size, key = header.of_arch("attention.sliding_window"), "attention.sliding_window_pattern"
    pattern = header.of_arch(key) or _PERIODS.get(header.architecture)
    if isinstance(pattern, Array):
        share = float(np.mean(header.array(f"{header.architecture}.{key}") != 0))
    else:
        share = 1.0 - 1.0 / int(pattern) if isinstance(pattern, int) and pattern > 0 else 0.0
    return Window(size, share) if isinstance(size, int) and size > 0 and share > 0.0 else Window()
