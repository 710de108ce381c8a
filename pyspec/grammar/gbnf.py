"""Grammars that answers follow: GBNF, and GBNF made from JSON schemas.

Both the converter of schemas and llama.cpp's grammar parser recurse. Therefore untrusted input is bounded before it reaches them,
and grammars run in separate processes (`masks.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar

from pyspec.errors import InputError
from pyspec.grammar._child import MOST_BYTES, schema_converter
from pyspec.grammar.masks import ISOLATED, GrammarHost, convert_schema

MOST_RULES = 10_000
MOST_DEPTH = 128
"""Deepest nesting of brackets."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>]*>?|#[^\n\r]*', re.DOTALL)
"""Literals, classes, tokens and comments, in which brackets and `::=` do not count. Each alternative may end with the text: if it
could fail there, the search would restart at every character."""


def bounded(text: str) -> str:
    """Return the GBNF text if it is small and flat enough to be parsed without exhausting the stack. Raises InputError."""
    if len(text) > MOST_BYTES:
        raise InputError(f"the grammar is longer than {MOST_BYTES} bytes", "make it shorter")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in set(text)):
        raise InputError("the grammar is not UTF-8 text", "encode it as UTF-8")
    bare = _QUOTED.sub("", text)
    if (rules := bare.count("::=")) > MOST_RULES:
        raise InputError(f"the grammar has {rules} rules", f"use at most {MOST_RULES}")
    depth = deepest = 0
    for bracket in re.findall(r"[()]", bare):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise InputError(f"the grammar nests brackets {deepest} deep", f"use at most {MOST_DEPTH}")
    return text


def is_bounded(text: str) -> bool:
    """Whether the GBNF text is small and flat enough."""
    try:
        bounded(text)
    except InputError:
        return False
    return True


def check_grammar(grammar: Any, llama: Any) -> None:
    """Raise InputError for a `LlamaGrammar` that llama.cpp cannot use; in a sampler chain it would end the process."""
    text, root = bounded(grammar._grammar), grammar._root
    if ISOLATED:
        GrammarHost.of(llama).check(text, root)
        return
    vocab = llama._model.vocab
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), root.encode())
    if not sampler:
        raise InputError(
            "the grammar cannot be parsed",
            "use GBNF with a rule named root and without left recursion",
        )
    llama_cpp.llama_sampler_free(sampler)


SCHEMA_DEPTH = 64
"""Deepest nesting of a schema."""

SCHEMA_BYTES = 1 << 16
"""Longest schema, bytes."""

SMALL_SCHEMA = 1024
"""Size in bytes up to which the converter takes at most some hundredths of a second for any schema."""

MOST_REPEATS = 10_000
"""Most repetitions in a schema: the converter writes each one out."""

_BOUNDS = {"minItems", "maxItems", "minLength", "maxLength"}
_REPEATED = re.compile(r"\{(\d*)(?:,(\d*))?\}")


class Constraint(LlamaGrammar):  # type: ignore[misc]  # llama_cpp is untyped
    """A grammar that an answer follows, from the first match of `trigger` if given. Raises InputError as `bounded` does."""

    def __init__(self, grammar: str, trigger: str | None = None) -> None:
        super().__init__(_grammar=bounded(grammar))
        self.trigger = trigger


def schema_grammar(schema: Any) -> str:
    """Return the GBNF of a JSON schema. Raises InputError if it is too deep, too large or cannot be converted."""
    if not isinstance(schema, (dict, bool)):
        raise InputError("the JSON schema is not an object")
    _check_depth(schema)
    text = json.dumps(schema)
    if len(text) > SCHEMA_BYTES:
        raise InputError(f"the JSON schema is longer than {SCHEMA_BYTES} bytes")
    if ISOLATED and len(text) > SMALL_SCHEMA:
        return convert_schema(text)
    try:
        return str(schema_converter()(text))
    except Exception as error:  # noqa: BLE001 - an untrusted schema may break the converter in any way
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
