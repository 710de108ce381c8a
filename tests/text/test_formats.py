"""What OpenAI's requests demand of an answer."""

import pytest

from pyspec.errors import InputError
from pyspec.grammar.schemas import of_schema
from pyspec.text.completions import format_language, tools_left

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


@pytest.mark.parametrize("form", [{"type": "xml"}, {"schema": SCHEMA}, {"type": "json_schema"}])
def test_a_format_that_there_is_not_is_refused(form):
    with pytest.raises(InputError):
        format_language(form)


@pytest.mark.parametrize(("choice", "left", "wanted"), [
    (None, TOOLS, None), ("auto", TOOLS, None), ("required", TOOLS, "required"),
    ({"type": "function", "function": {"name": "sub"}}, TOOLS, "sub"), ({"name": "sub"}, TOOLS, "sub"),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "add"}]}, TOOLS[:1], "required"),
    ({"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": "add"}}]}}, TOOLS[:1], None),
])  # fmt: skip
def test_a_choice_leaves_tools_and_wants_one(choice, left, wanted):
    assert tools_left(TOOLS, choice) == (left, wanted)


@pytest.mark.parametrize("choice", ["always", {"function": {"name": "no"}}, {"function": "add"}, 5])
def test_a_choice_that_there_is_not_is_refused(choice):
    with pytest.raises(InputError, match="tool_choice"):
        tools_left(TOOLS, choice)
