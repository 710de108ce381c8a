"""Checks the character normalization table of a unigram tokenizer for faults that make llama.cpp end the process.

The table is a double array (Kanda 2018, as SentencePiece compiles it) and the texts that its leaves point to. llama.cpp walks it
at each position of a text, and throws through C if a step leaves the array or a text has no end. It is unknown which inputs do
that, so the whole table is walked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LARGEST = 1 << 20
"""Largest table, bytes; SentencePiece's own are a quarter of that."""

DEEPEST = 255
"""Longest entry, bytes: each position of a text may cost as many steps."""

_HAS_TEXT, _WIDE, _VALUE = 1 << 8, 1 << 9, 0x7FFFFFFF


def fault_of(table: bytes) -> str:
    """Return what is wrong with a table, or the empty string."""
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
    """Visit all nodes that any text reaches, one byte per step. last_end: where the last text ends.

    A node is reached only by the byte it names, so only from one place: its index XOR that byte.
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
    return ((nodes >> 10) << ((nodes & _WIDE) >> 6)).astype(np.int64)
