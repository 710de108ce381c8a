"""Grammars that answers follow: GBNF, and GBNF made of JSON schemas.

The converter of schemas recurses, and so does llama.cpp's parser of grammars. So what strangers send is bounded before it gets
there, and grammars run in processes of their own (`masks.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar, json_schema_to_gbnf

from pyspec.errors import InputError
from pyspec.grammar._child import MOST_BYTES
from pyspec.grammar.masks import ISOLATED, GrammarHost, convert_schema

MOST_RULES = 10_000
MOST_DEPTH = 128
"""Levels of brackets."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>]*>?|#[^\n\r]*', re.DOTALL)
"""What brackets and rules may stand in without being any. Each ends somewhere, if only with the text: a search that failed at
its end would begin anew at each character."""


def bounded(text: str) -> str:
    """The GBNF text, if its size and depth are such that parsing it cannot exhaust the stack. Raises InputError."""
    if len(text) > MOST_BYTES:
        raise InputError(f"the grammar is longer than {MOST_BYTES} bytes", "make it shorter")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in set(text)):
        raise InputError("the grammar is not UTF-8 text", "write it as text")
    bare = _QUOTED.sub("", text)
    if (rules := bare.count("::=")) > MOST_RULES:
        raise InputError(f"the grammar has {rules} rules", f"use at most {MOST_RULES}")
    depth = deepest = 0
    for bracket in re.findall(r"[()]", bare):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise InputError(f"the grammar has brackets {deepest} deep", f"use at most {MOST_DEPTH}")
    return text


def check_grammar(grammar: Any, llama: Any) -> None:
    """Raise InputError for a `LlamaGrammar` that llama.cpp cannot use; added to a sampler chain it would end the process."""
    text, root = bounded(grammar._grammar), grammar._root
    if ISOLATED:
        GrammarHost.of(llama).check(text, root)
        return
    vocab = llama._model.vocab
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), root.encode())
    if not sampler:
        raise InputError(
            "the grammar cannot be parsed", "it is GBNF, begins at root and has no left recursion"
        )
    llama_cpp.llama_sampler_free(sampler)


SCHEMA_DEPTH = 64
"""Levels of a schema."""

SCHEMA_BYTES = 1 << 16
"""Bytes of a schema."""

SMALL_SCHEMA = 1024
"""Bytes that the converter turns into a grammar in some hundredths of a second whatever they say."""

MOST_REPEATS = 10_000
"""Of anything in a schema: the converter writes them all out."""

_BOUNDS = {"minItems", "maxItems", "minLength", "maxLength"}
_REPEATED = re.compile(r"\{(\d*)(?:,(\d*))?\}")


class Constraint(LlamaGrammar):  # type: ignore[misc]  # llama_cpp is untyped
    """A grammar that an answer follows, from its first `trigger` on where there is one. Raises InputError as `bounded` does."""

    def __init__(self, grammar: str, trigger: str | None = None) -> None:
        super().__init__(_grammar=bounded(grammar))
        self.trigger = trigger


def schema_grammar(schema: Any) -> str:
    """GBNF of a JSON schema. Raises InputError where it is too deep, too large or says what cannot be had."""
    if not isinstance(schema, (dict, bool)):
        raise InputError("the JSON schema is not an object")
    _check_depth(schema)
    text = json.dumps(schema)
    if len(text) > SCHEMA_BYTES:
        raise InputError(f"the JSON schema is longer than {SCHEMA_BYTES} bytes")
    if ISOLATED and len(text) > SMALL_SCHEMA:
        return convert_schema(text)
    try:
        return str(json_schema_to_gbnf(text))
    except Exception as error:  # noqa: BLE001 - whatever the converter stumbles over, the schema is somebody's
        raise InputError(f"the JSON schema cannot be used: {str(error)[:200]}") from None


def _check_bounds(schema: dict[str, Any]) -> None:
    found = [schema[name] for name in _BOUNDS & schema.keys()]
    bounds = [bound for bound in found if isinstance(bound, (int, float))]
    if isinstance(pattern := schema.get("pattern"), str):
        numbers = (number for pair in _REPEATED.findall(pattern) for number in pair)
        bounds += [int(number[:9]) for number in numbers if number]
    if max(bounds, default=0) > MOST_REPEATS:
        raise InputError(f"the JSON schema repeats something more than {MOST_REPEATS} times")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > SCHEMA_DEPTH:
            raise InputError(f"the JSON schema is more than {SCHEMA_DEPTH} levels deep")
        for outer in level:
            if isinstance(outer, dict):
                _check_bounds(outer)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
