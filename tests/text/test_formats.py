"""What OpenAI's requests demand of an answer."""

import pytest

from pyspec.grammar.schemas import of_schema
from pyspec.text.completions import format_language

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"name": "add"}, {"name": "sub"}]


@pytest.mark.parametrize("form", [None, {}, {"type": "text"}])
def test_any_text_needs_no_grammar_and_any_object_is_json(form):
    assert format_language(form) is None
    plain = {"type": "json_object"}
    assert format_language(plain) == format_language({**plain, "schema": None}) is not None


@pytest.mark.parametrize("form", [
    {"type": "json_object", "schema": SCHEMA},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    {"type": "json_schema", "schema": SCHEMA},
])  # fmt: skip
def test_a_schema_is_found_wherever_it_stands(form):
    assert format_language(form) == of_schema(SCHEMA)
