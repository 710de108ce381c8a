"""Which spaces an answer of JSON is expected to have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.grammar.tokens import SPACES, Spacing

PARTS = st.recursive(
    st.integers() | st.text('ab "\\,:{}[]é\n', max_size=4) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)
VALUES = st.dictionaries(st.sampled_from(["a", "b,", 'c"']), PARTS, min_size=1, max_size=3)


def missed(text, spacing):
    found = []
    for at in range(len(text)):
        char = text[at : at + 1]
        if char not in SPACES or not spacing.expected(b""):
            following = text[at:].lstrip(SPACES)[:1]
            spaces = text[at:][: len(text[at:]) - len(text[at:].lstrip(SPACES))]
            if not spacing._quoted and spacing.expected(following) != spaces:
                found.append(text[:at])
        spacing.read(char)
    return found


@pytest.mark.parametrize("indent", [1, 2, 4])
@given(value=VALUES)
def test_json_with_lines_is_foreseen_after_its_first(indent, value):
    text = json.dumps(value, indent=indent).encode()
    spacing = Spacing()
    start = 3 + indent
    spacing.read(text[:start])
    assert missed(text[start:], spacing) == []


@given(value=VALUES)
def test_json_in_one_line_is_foreseen_from_the_start(value):
    assert missed(json.dumps(value).encode(), Spacing()) == []


def test_separators_are_learnt():
    spacing = Spacing()
    spacing.read(b'{"a":1,"b":2,')
    assert spacing.expected(b'"') == b""
    spacing.read(b'"c"')
    assert spacing.expected(b":") == b""
    spacing.read(b":")
    assert spacing.expected(b"3") == b""
