"""Grammars of callers, bounded before llama.cpp's parser sees them: it recurses by brackets and by rules."""

from __future__ import annotations

import re
from typing import Any

import llama_cpp

from pyspec.errors import InputError

MOST_BYTES = 1 << 20
MOST_RULES = 10_000
DEEPEST = 128
"""Levels of brackets."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*')


def bounded(text: str) -> str:
    """The GBNF text, if its size and depth are such that parsing it cannot exhaust the stack. Raises InputError."""
    if len(text) > MOST_BYTES:
        raise InputError(f"the grammar is longer than {MOST_BYTES} bytes", "make it shorter")
    bare = _QUOTED.sub("", text)
    if (rules := bare.count("::=")) > MOST_RULES:
        raise InputError(f"the grammar has {rules} rules", f"use at most {MOST_RULES}")
    depth = deepest = 0
    for bracket in re.findall(r"[()]", bare):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise InputError(f"the grammar has brackets {deepest} deep", f"use at most {DEEPEST}")
    return text


def check_grammar(text: str, vocab: Any) -> None:
    """Raise InputError for a grammar that llama.cpp cannot use; added to a sampler chain it would end the process."""
    try:
        encoded = bounded(text).encode()
    except UnicodeEncodeError as error:
        raise InputError("the grammar is not UTF-8", "write it as text") from error
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, encoded, b"root")
    if not sampler:
        raise InputError(
            "the grammar cannot be parsed", "it is GBNF, begins at root and has no left recursion"
        )
    llama_cpp.llama_sampler_free(sampler)
