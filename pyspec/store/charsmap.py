"""The table by which a unigram tokenizer writes characters in another way, held against what llama.cpp ends the process for.

It is a double array (Kanda 2018, as SentencePiece compiles it) and the texts that its leaves point to. llama.cpp walks it for
each place of a text and throws, through C, where a step leads out of the array or a text has no end. Which text leads there
nobody knows before, so all of it is walked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LARGEST = 1 << 20
"""Bytes; SentencePiece's own tables have a quarter of that."""

DEEPEST = 255
"""Bytes of the longest entry: each place of a text may cost as many steps."""

_HAS_TEXT, _WIDE, _VALUE = 1 << 8, 1 << 9, 0x7FFFFFFF


def fault_of(table: bytes) -> str:
    """What is wrong with a table, the empty string for nothing."""
    if len(table) < 5:
        return "is too short"
    if len(table) > LARGEST:
        return f"is larger than {LARGEST >> 20} MiB"
    size = int.from_bytes(table[:4], "little")
    if size + 4 >= len(table):
        return "ends before its texts"
    nodes = np.frombuffer(table, np.uint32, size // 4, 4)
    return _walk(nodes, table[4 + size :].rfind(b"\0")) if len(nodes) else ""


def _walk(nodes: Any, last_end: int) -> str:
    """All places that any text reaches, a byte at a time; last_end: where the last of the texts ends.

    A node is reached by the byte that it names alone, so it belongs to one place, its number with that byte's bits turned.
    """
    labels, bases = (nodes & 0xFF).astype(np.int64), _bases(nodes)
    steps = np.flatnonzero((labels != 0) & (nodes <= _VALUE))
    start, end = steps ^ labels[steps], steps ^ bases[steps]
    reached = bases[:1]
    for _ in range(DEEPEST + 1):
        if np.any(reached | 0xFF >= len(nodes)):  # a byte leads anywhere among 256 nodes
            return "leads beyond its end"
        here = np.zeros(len(nodes), bool)
        here[reached] = True
        taken = (start < len(nodes)) & here[np.minimum(start, len(nodes) - 1)]
        if not taken.any():
            return ""
        reached = end[taken]
        texts = reached[(nodes[steps[taken]] & _HAS_TEXT) != 0]
        if np.any(texts >= len(nodes)):
            return "leads beyond its end"
        if np.any((nodes[texts] & _VALUE).astype(np.int64) > last_end):
            return "names a text that has no end"
    return f"has entries of more than {DEEPEST} bytes"


def _bases(nodes: Any) -> Any:
    """How far each node's children are."""
    return ((nodes >> 10) << ((nodes & _WIDE) >> 6)).astype(np.int64)
