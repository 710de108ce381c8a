"""Answers of a random model under random schemas, with drafts, are valid."""

import json
from contextlib import closing
from typing import Any

import jsonschema
import pytest
from helpers import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec import SpeculativeLlama
from pyspec.errors import InputError
from pyspec.text.completions import format_language

NAMES = st.sampled_from(["a", "b", 'q"', "é", "a b"])
VALUES = st.none() | st.booleans() | st.integers(-9, 99) | st.text('ab"\\é\n', max_size=4)


def schemas(inner):
    objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(
        lambda known: st.fixed_dictionaries({
            "type": st.just("object"),
            "properties": st.just(known),
            "required": st.lists(st.sampled_from([*known, "z"]), unique=True, max_size=2),
            "additionalProperties": st.booleans() | st.just({"enum": [1]}),
        })
    )  # fmt: skip
    lists = st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner, st.integers(0, 2), st.integers(0, 2),
    )  # fmt: skip
    ways = st.lists(inner, min_size=1, max_size=2)
    return (
        objects
        | lists
        | ways.map(lambda found: {"anyOf": found})
        | ways.map(lambda found: {"allOf": found[:1]})
    )


LEAVES = st.one_of(
    st.just({}),
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.integers(0, 3).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 2}),
    st.integers(-20, 20).map(lambda n: {"type": "integer", "minimum": n, "maximum": n + 7}),
    st.sampled_from(["^[^,]+$", "^yes|no$", r"^\d{2}", "^.{1,4}$", r"\.\w$"]).map(lambda p: {"type": "string", "pattern": p}),
    st.sampled_from(["date", "ipv4", "uuid", "color"]).map(lambda form: {"type": "string", "format": form}),
)  # fmt: skip
SCHEMAS = st.recursive(LEAVES, schemas, max_leaves=5)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    words = ["true", '":', '",', "é", '\\"', "\\n", "00", "[]", "}}"]
    path = tmp_path_factory.mktemp("words") / "words.gguf"
    tiny.write(path, tokens=[*tiny.ASCII, *words])
    how: dict[str, Any] = {"draft": str(path), "length": "fixed:3", "n_ctx": 512, "n_threads": 1}
    with closing(SpeculativeLlama(str(path), trust=True, verbose=False, **how)) as opened:
        yield opened


@settings(max_examples=40)
@given(schema=SCHEMAS, seed=st.integers(0, 99))
def test_every_answer_that_ends_is_valid(llm, schema, seed):
    """By another program's reading of the schema, at a temperature at which anything may come that may."""
    form = {"type": "json_object", "schema": schema}
    try:
        format_language(form)
    except InputError as error:
        assert "Unsatisfiable" in str(error)  # noqa: PT017 - everything else here can be held
        return
    made = llm.create_chat_completion(
        [{"role": "user", "content": "a"}], response_format=form, temperature=1.5, seed=seed, max_tokens=200
    )["choices"][0]  # fmt: skip
    if made["finish_reason"] == "stop":
        jsonschema.Draft202012Validator(schema).validate(json.loads(made["message"]["content"]))
