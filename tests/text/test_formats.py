"""What OpenAI's requests demand of an answer."""

import pytest

from pyspec.grammar.schemas import ANY_OBJECT, of_schema
from pyspec.text.completions import format_language

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(("form", "schema"), [
    (None, None), ({}, None), ({"type": "text"}, None),
    ({"type": "json_object"}, ANY_OBJECT), ({"type": "json_object", "schema": None}, ANY_OBJECT),
    ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, SCHEMA),
    ({"type": "json_schema", "schema": SCHEMA}, SCHEMA),
])  # fmt: skip
def test_a_schema_is_found_wherever_it_stands(form, schema):
    """None: any text, which needs no grammar."""
    assert format_language(form) == (of_schema(schema) if schema else None)
