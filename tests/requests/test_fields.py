"""A body that is no JSON is refused by the name of the field where it is wrong."""

from __future__ import annotations

import json

import pytest

from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody, decoded

WHOLE = (
    b'{"model": "m", "messages": [{"role": "user", "content": "say \\"a\\": 1"}], "max_tokens": 4}'
)


def said(data):
    with pytest.raises(InputError) as caught:
        decoded(ChatBody, data)
    assert "byte" not in str(caught.value).replace("has bytes that are", "")
    return str(caught.value)


@pytest.mark.parametrize(
    "half", [r"\ud83d", r"a\ud83d", r"\ud83d b", r"\ude00", r"\ud83d\ud83d\ude00"]
)
def test_half_a_character_is_told_by_its_field(half):
    """At the end of a text, msgspec takes it for the end of the body."""
    assert said(WHOLE.replace(b"say", half.encode())).startswith("content has half a character")
    assert "stop has" in said(WHOLE.replace(b"4}", b'4, "stop": ["' + half.encode() + b'"]}'))


@pytest.mark.parametrize(
    ("end", "field"),
    [
        ("say", "content"),
        ("user", "role"),
        ('"max_tokens":', "max_tokens"),
        ('[{"role', "messages"),
    ],
)
def test_a_body_that_ends_early_is_told_by_its_field(end, field):
    assert f"ends within {field}" in said(WHOLE[: WHOLE.index(end.encode()) + len(end)])


def test_other_bytes_are_told_by_their_field():
    assert said(WHOLE.replace(b"say", b"\xff")).startswith("content has bytes that are not UTF-8")
    assert said(WHOLE.replace(b"4}", b"NaN}")) == "the body is no JSON at max_tokens"
    assert said(WHOLE.replace(b"4}", b"4,}")) == "the body is no JSON at max_tokens"
    assert "ends within the body" in said(b"")
    assert "nested too deep" in said(b'{"json_schema": {"a": ' + b"[" * 100_000)


def test_a_large_body_is_not_read_twice():
    """Other requests would wait."""
    assert "not all of it" in said(WHOLE.replace(b"say", b"s" * (1 << 20))[:-2])


def test_a_byte_order_mark_is_taken():
    assert decoded(ChatBody, b"\xef\xbb\xbf" + WHOLE) == decoded(ChatBody, WHOLE)
    assert json.loads(WHOLE)["max_tokens"] == decoded(ChatBody, WHOLE).max_tokens
