"""Text from tokens: whole characters, stop strings held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.errors import OptionError
from pyspec.text.stream import TextAssembler


def assembler(pieces: list[bytes], stop: tuple[str, ...] = ()) -> TextAssembler:
    return TextAssembler(pieces.__getitem__, stop)


def test_half_a_character_waits() -> None:
    text = assembler(["é".encode()[:1], "é".encode()[1:]])
    assert [text.push([0]), text.push([1])] == ["", "é"]


def test_bad_bytes_are_replaced_at_the_end() -> None:
    text = assembler([b"\xe2\x82"])
    assert text.push([0]) + text.finish() == "\ufffd"


def test_possible_stop_is_held_back() -> None:
    text = assembler([b"a EN", b"Dless", b" way"], ("END.",))
    assert [text.push([0]), text.push([1]), text.push([2])] == ["a ", "ENDless", " way"]


def test_stop_string_ends_the_text() -> None:
    text = assembler([b"one", b" STOP two"], ("STOP",))
    assert text.push([0]) + text.push([1]) + text.push([0]) + text.finish() == "one "
    assert text.done


def test_earliest_of_several_stops_counts() -> None:
    text = assembler([b"x BB AA"], ("AA", "BB"))
    assert text.push([0]) == "x "


def test_the_first_complete_stop_counts_however_the_text_is_cut() -> None:
    """Where one lies inside another, tokens of any length give the same text."""
    for cuts in (["abcd"], ["abc", "d"], ["a", "b", "c", "d"]):
        text = assembler([piece.encode() for piece in cuts], ("abcd", "bc"))
        assert "".join(text.push([i]) for i in range(len(cuts))) + text.finish() == "a"


def test_too_many_stop_strings_are_refused() -> None:
    """Each token would be held against all of them."""
    with pytest.raises(OptionError, match="stop strings"):
        assembler([], tuple(map(str, range(1000))))
    with pytest.raises(OptionError, match="stop strings"):
        assembler([], ("x" * 10_000,))


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


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(OptionError):
        assembler([], ("",))


@given(st.text(), st.data())
def test_any_split_gives_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out = assembler(pieces, ("\u2603stop",))
    shown = "".join(out.push([i]) for i in range(len(pieces))) + out.finish()
    assert shown == text.split("\u2603stop", maxsplit=1)[0]
