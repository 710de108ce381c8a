"""JSON schemas as grammars: lengths are counted, and of a tool's schema there is always one."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text.call_examples import FAMILIES
from text.test_calls import notation_of

from pyspec.errors import InputError
from pyspec.grammar._child import repeated
from pyspec.grammar.gbnf import Constraint, check_grammar, schema_grammar
from pyspec.grammar.masks import CANDIDATES
from pyspec.grammar.schemas import MOST_COUNTED, tool_schema
from pyspec.text.calls.grammar import calls_grammar

Takes = Callable[[str, str], bool]


@pytest.fixture(scope="module")
def llama(tiny_ascii: Path) -> Iterator[Any]:
    """A model of 94 characters."""
    llm = llama_cpp.Llama(str(tiny_ascii), n_ctx=64, verbose=False)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def takes(llama: Any) -> Takes:
    """Says whether a text follows a grammar and may end."""
    vocab = llama._model.vocab

    def allowed(sampler: Any, token: int) -> bool:
        row = np.zeros(1, CANDIDATES)
        row["id"] = token
        data = row.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data=data, size=1, selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        return bool(np.isfinite(row["logit"][0]))

    def taken(grammar: str, text: str) -> bool:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        assert sampler
        try:
            for char in text:
                token = llama.tokenize(char.encode(), add_bos=False)[-1]
                if not allowed(sampler, token):
                    return False
                llama_cpp.llama_sampler_accept(sampler, token)
            return allowed(sampler, llama.token_eos())
        finally:
            llama_cpp.llama_sampler_free(sampler)

    return taken


@pytest.mark.parametrize("n", [1, 2, 127, 300])
@pytest.mark.parametrize(
    ("schema", "write"),
    [
        (lambda n: {"type": "string", "maxLength": n}, lambda n: json.dumps("a" * n)),
        (lambda n: {"type": "string", "pattern": f"^[a-c]{{0,{n}}}$"}, lambda n: json.dumps("a" * n)),
        (lambda n: {"type": "array", "items": {"const": 1}, "maxItems": n}, lambda n: json.dumps([1] * n)),
    ],
    ids=["text", "pattern", "list"],
)  # fmt: skip
def test_a_greatest_length_is_kept(schema: Any, write: Any, n: int, takes: Takes) -> None:
    """However long it is: llama-cpp-python's own grammars have a bracket within another for each place."""
    grammar = schema_grammar(schema(n))
    assert takes(grammar, write(n).replace(", ", ","))
    assert not takes(grammar, write(n + 1).replace(", ", ","))


@pytest.mark.parametrize("n", [1, 2, 300])
@pytest.mark.parametrize("key", ["minLength", "minItems"])
def test_a_least_length_is_kept(key: str, n: int, takes: Takes) -> None:
    """A text or list that is shorter is none."""
    text = key == "minLength"
    kind = {"type": "string"} if text else {"type": "array", "items": {"const": 1}}
    grammar = schema_grammar({**kind, key: n, key.replace("min", "max"): n + 1})
    for length, right in ((n - 1, False), (n, True), (n + 1, True), (n + 2, False)):
        said = json.dumps("a" * length) if text else json.dumps([1] * length).replace(", ", ",")
        assert takes(grammar, said) is right


@given(
    least=st.integers(0, 3), more=st.none() | st.integers(0, 3), between=st.sampled_from(["", "-"])
)
def test_repetitions_are_as_often_as_they_say(
    takes: Takes, least: int, more: int | None, between: str
) -> None:
    """With a separator or without."""
    most = None if more is None else least + more
    body = repeated("x", least, most, f'"{between}"' if between else None)
    grammar = f'root ::= "(" {body} ")"\nx ::= "a"\n'
    for n in range(8):
        right = least <= n and (most is None or n <= most)
        assert takes(grammar, f"({between.join('a' * n)})") is right


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
ODD: dict[str, Any] = {
    "a length that none counts": {"type": "string", "maxLength": 524288},
    "a long list": {"type": "array", "maxItems": 10**9},
    "a title alone": {"title": "Value"},
    "true": True,
    "false": False,
    "nothing": {},
    "items of any kind": {"type": "array", "items": {}},
    "items that are true": {"type": "array", "items": True},
    "a pattern without ends": {"type": "string", "pattern": "a|b"},
    "a pattern of a class": {"type": "string", "pattern": r"^\d{4}-\w+$"},
    "a pattern that looks ahead": {"type": "string", "pattern": "^(?!a)b$"},
    "a reference": {"$ref": "#/$defs/Point"},
    "a described reference": {"description": "Where.", "allOf": [{"$ref": "#/$defs/Point"}]},
    "a reference or null": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
    "a list of references": {"type": "array", "items": {"$ref": "#/definitions/Point"}},
    "a reference to all": {"$ref": "#"},
    "a reference to itself": {"$ref": "#/$defs/Loop"},
    "a reference to elsewhere": {"$ref": "https://example.invalid/point.json"},
    "a reference to nothing": {"$ref": "#/$defs/None"},
    "what it is not": {"not": {"type": "null"}},
    "a type in capitals": {"type": "STRING"},
    "a type of its own": {"type": "any"},
    "two types": {"type": ["string", "null"], "maxLength": 5},
    "a default alone": {"default": 3},
    "names that are checked": {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {}},
    "patterns of names": {"type": "object", "patternProperties": {"^.*$": {"type": "string"}}},
    "a tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"$ref": "#/$defs/Point"}]},
}  # fmt: skip


def whole(part: Any) -> dict[str, Any]:
    """Parameters of a tool that has such an argument."""
    defs = {
        "Point": POINT,
        "Loop": {"type": "object", "properties": {"in": {"$ref": "#/$defs/Loop"}}},
    }
    return {"type": "object", "properties": {"v": part}, "$defs": defs, "definitions": defs}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ODD.values(), ids=ODD)
def test_there_is_a_grammar_of_any_tool(family: str, part: Any, llama: Any) -> None:
    """One of these among an agent's tools is no reason to refuse its request."""
    grammar = calls_grammar(notation_of(family), {"f": tool_schema(whole(part))})
    check_grammar(Constraint(grammar), llama)


def test_what_is_no_schema_is_refused() -> None:
    """Nobody could call the tool."""
    with pytest.raises(InputError, match="not an object"):
        tool_schema("x")


def test_a_reference_is_followed(takes: Takes) -> None:
    """An argument has the form that it refers to."""
    grammar = schema_grammar(tool_schema(whole(ODD["a reference"])))
    assert takes(grammar, '{"v":{"x":1}}')
    assert not takes(grammar, '{"v":{"x":"a"}}')


def test_an_argument_of_no_type_may_be_anything(takes: Takes) -> None:
    """A text, too: the converter itself takes such a schema for an object, or for none."""
    grammar = schema_grammar(tool_schema(whole(ODD["a title alone"])))
    assert all(takes(grammar, f'{{"v":{said}}}') for said in ('"a"', "1", "null", "[]", "{}"))


def test_arguments_of_which_one_is_needed_keep_their_types(takes: Takes) -> None:
    """Some tools say so beside their arguments."""
    either = [{"required": ["x"]}, {"required": ["v"]}]
    grammar = schema_grammar(tool_schema({**POINT, "required": [], "anyOf": either}))
    assert takes(grammar, '{"x":1}')
    assert not takes(grammar, '{"x":"a"}')


def test_a_length_that_can_be_counted_is_kept() -> None:
    """And one that cannot is left out."""
    for n, kept in ((MOST_COUNTED, True), (MOST_COUNTED + 1, False)):
        made = tool_schema(whole({"type": "string", "maxLength": n}))["properties"]["v"]
        assert ("maxLength" in made) is kept


def test_references_of_references_are_not_written_out_without_end() -> None:
    """Each of them twice the one before would be more than any memory holds."""
    defs: dict[str, Any] = {"a0": POINT}
    for n in range(1, 19):
        pair = {"$ref": f"#/$defs/a{n - 1}"}
        defs[f"a{n}"] = {"type": "object", "properties": {"l": pair, "r": pair}}
    schema = {"type": "object", "properties": {"v": {"$ref": "#/$defs/a18"}}, "$defs": defs}
    assert len(json.dumps(tool_schema(schema))) < 1 << 16


WORDS = st.sampled_from(
    ["type", "properties", "items", "anyOf", "allOf", "$ref", "enum", "const", "required", "pattern", "maxLength",
     "additionalProperties", "nullable", "prefixItems", "a"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9)
    | st.sampled_from(["object", "array", "string", "number", "null", "a", "#", "#/properties/a", "^a$", "["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=24,
)  # fmt: skip


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_whatever_a_schema_is_a_grammar_can_be_made(schema: dict[str, Any]) -> None:
    """Of what is none, too."""
    assert schema_grammar(tool_schema(schema))
