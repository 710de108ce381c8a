"""Text from tokens: whole characters, stop strings held back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.errors import OptionError
from pyspec.text.stream import TextAssembler


def assembler(pieces: list[bytes], stop: tuple[str, ...] = ()) -> TextAssembler:
    return TextAssembler(pieces.__getitem__, stop)


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        (["é".encode()[:1], "é".encode()[1:]], (), ["", "é", ""]),
        ([b"\xe2\x82"], (), ["", "\ufffd"]),
        ([b"a EN", b"Dless", b" way"], ("END.",), ["a ", "ENDless", " way", ""]),
        ([b"one", b" STOP two", b"one"], ("STOP",), ["one", " ", "", ""]),
        ([b"x BB AA"], ("AA", "BB"), ["x ", ""]),
    ],
    ids=["half a character", "damaged bytes", "possible stop", "stop", "earliest stop"],
)
def test_text_is_shown_as_soon_as_it_is_safe(
    pieces: list[bytes], stop: tuple[str, ...], shown: list[str]
) -> None:
    text = assembler(pieces, stop)
    assert [*(text.push([i]) for i in range(len(pieces))), text.finish()] == shown
    assert text.done is any(each.encode() in b"".join(pieces) for each in stop)


def test_the_first_complete_stop_counts_however_the_text_is_cut() -> None:
    """Where one lies inside another, tokens of any length give the same text."""
    for cuts in (["abcd"], ["abc", "d"], ["a", "b", "c", "d"]):
        text = assembler([piece.encode() for piece in cuts], ("abcd", "bc"))
        assert "".join(text.push([i]) for i in range(len(cuts))) + text.finish() == "a"


@pytest.mark.parametrize("stops", [tuple(map(str, range(1000))), ("x" * 10_000,), ("",)])
def test_stop_strings_that_are_too_many_too_long_or_empty_are_refused(stops: Any) -> None:
    with pytest.raises(OptionError, match="stop string"):
        assembler([], stops)


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_stops_are_found_where_a_plain_search_finds_them(text: str, stops: list[str]) -> None:
    """The first one to be complete, the longest of those that end there; nothing of a possible one is shown before."""
    found = [
        (end, -len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[:end].endswith(stop)
    ]
    wanted = text[: sum(min(found))] if found else text
    out = assembler([char.encode() for char in text], tuple(stops))
    assert "".join(out.push([i]) for i in range(len(text))) + out.finish() == wanted


@given(st.text(), st.data())
def test_any_split_gives_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out = assembler(pieces, ("\u2603stop",))
    shown = "".join(out.push([i]) for i in range(len(pieces))) + out.finish()
    assert shown == text.split("\u2603stop", maxsplit=1)[0]
