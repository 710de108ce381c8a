"""A text that arrives in pieces: whole characters, stop strings held back, and names as if they were complete."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.errors import OptionError
from pyspec.text.answer import AnswerReader
from pyspec.text.stream import MAX_NAME, Scanner, StopFinder


def shown(pieces, stop):
    """What each token of an answer shows, and its end."""

    def text(parts):
        return "".join(part.text for part in parts)

    reader = AnswerReader(pieces.__getitem__, stop)
    made = [*(text(reader.push([i])) for i in range(len(pieces))), text(reader.finish())]
    assert reader.done is any(each.encode() in b"".join(pieces) for each in stop)
    return made


@pytest.mark.parametrize(("pieces", "stop", "wanted"), [
    (["é".encode()[:1], "é".encode()[1:]], (), ["", "é", ""]),
    ([b"\xe2\x82"], (), ["", "\ufffd"]),
    ([b"a EN", b"Dless", b" way"], ("END.",), ["a ", "ENDless", " way", ""]),
    ([b"one", b" STOP two", b"one"], ("STOP",), ["one", " ", "", ""]),
    ([b"x BB AA"], ("AA", "BB"), ["x ", ""]),
], ids=["half a character", "damaged bytes", "possible stop", "stop", "earliest stop"])  # fmt: skip
def test_text_is_shown_as_soon_as_it_is_safe(pieces, stop, wanted):
    assert shown(pieces, stop) == wanted


@pytest.mark.parametrize("stops", [tuple(map(str, range(1000))), ("x" * 10_000,), ("",)])
def test_stop_strings_that_are_too_many_too_long_or_empty_are_refused(stops):
    with pytest.raises(OptionError, match="stop string"):
        StopFinder(stops)


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_stops_are_found_where_a_plain_search_finds_them(text, stops):
    """The first one to be complete, the longest of those that end there; nothing of a possible one is shown before."""
    found = [
        (end, -len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[:end].endswith(stop)
    ]
    wanted = text[: sum(min(found))] if found else text
    for pieces in (list(text), [text]):
        finder = StopFinder(stops)
        assert "".join(map(finder.push, pieces)) + finder.finish() == wanted


@given(st.text(), st.data())
def test_any_split_gives_the_same_text(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert "".join(shown(pieces, ("\u2603stop",))) == text.split("\u2603stop", maxsplit=1)[0]


def until(text, pieces):
    scanner, size = Scanner(), -(-len(text) // pieces)
    reading = scanner.until(("</x>",))
    for n in range(pieces + 1):
        scanner.ended = n == pieces
        scanner.feed(text[n * size : (n + 1) * size])
        try:
            next(reading)
        except StopIteration as done:
            return done.value
    raise AssertionError("it still waits for text")


@pytest.mark.parametrize("pieces", [1, 2, 3, 300])
def test_a_name_has_its_longest_length_however_it_arrives(pieces):
    longest = "n" * MAX_NAME
    assert until(f"{longest}</x>", pieces) == (longest, "</x>")
    assert until(f"{longest}nn</x>", pieces) == (f"{longest}n", "")
