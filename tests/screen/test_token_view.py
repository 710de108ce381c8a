"""Tokens by source: as an answer comes, and afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.fake_chat import FakeModel, screen
from hypothesis import given
from hypothesis import strategies as st

from pyspec.screen.token_view import TokenPaint, legend, print_tokens, token_text
from pyspec.screen.words import safe
from pyspec.text.parts import Source, Token


def token(number: int, source: Source = Source.TARGET) -> Token:
    """A token of an id; relaxed ones have a gap."""
    gap = 0.5 if source is Source.RELAXED else 0.0
    return Token(number, source, gap, ord("-"))


def framed(tokens: list[Token], piece: Callable[[int], bytes]) -> str:
    """The answer as it is shown without colour, with its sources."""
    return token_text(tokens, piece, colour=False).plain.partition("\n\n")[0]


def test_neighbours_of_one_source_are_joined() -> None:
    """Stretches of one source stand in one frame; each relaxed token in its own."""
    target, accepted, relaxed = Source
    sources = (target, accepted, accepted, relaxed, relaxed)
    tokens = [token(ord(char), source) for char, source in zip("abcde", sources, strict=True)]
    assert framed(tokens, FakeModel([]).piece) == "a[bc]{d}(1){e}(2)"


def test_a_character_split_over_tokens_is_whole() -> None:
    """Bytes of one character in two tokens are shown with the second; one that is cut is said."""
    data = "é".encode()
    split = [token(0), token(1, Source.ACCEPTED)]
    assert framed(split, lambda at: data[at : at + 1]) == "[é]"
    assert framed(split[:1], lambda at: data[at : at + 1]) == "\N{REPLACEMENT CHARACTER}"


def test_tokens_in_colour_have_no_frames() -> None:
    """A colour terminal gets colours instead of brackets."""
    shown, text = screen(colour=True)
    print_tokens(
        shown.out, [token(ord("a")), token(ord("b"), Source.ACCEPTED)], FakeModel([]).piece
    )
    assert "a\x1b[32mb\x1b[0m" in text.getvalue()
    assert "[b]" not in text.getvalue()


def test_tokens_cannot_drive_the_terminal() -> None:
    """Escapes inside tokens are dropped in the colour view, in the list of relaxed ones too."""
    shown, text = screen(colour=True)
    print_tokens(
        shown.out,
        [token(0x1B), token(0x9B, Source.RELAXED)],
        lambda at: chr(at).encode() + b"]52;x",
    )
    assert "\x1b]" not in text.getvalue()
    assert "\x9b" not in text.getvalue()


def painted(
    words: list[tuple[str, Source]], shown: list[str], *, colour: bool = False
) -> list[tuple[str, str]]:
    """Parts of the shown text that these words, a token each, were."""
    data = [word.encode() for word, _ in words]
    paint = TokenPaint(data.__getitem__, colour=colour)
    paint.take([token(i, source) for i, (_, source) in enumerate(words)])
    parts = [part for text in shown for part in paint(text)]
    return [*parts, (paint.finish(), "")]


def test_an_answer_is_coloured_as_it_comes() -> None:
    """Each part in the colour of its tokens' source, a blank in that of the word behind it."""
    words = [("The", Source.TARGET), (" cat", Source.ACCEPTED), (" sat", Source.RELAXED)]
    assert painted(words, ["The c", "at sat"], colour=True) == [
        ("The", ""), (" c", "green"), ("at", "green"), (" sat", "bold yellow"), ("", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("shown", [["The cat sat on"], ["The c", "at s", "at on"]])
def test_without_colour_drafted_parts_stand_in_frames(shown: list[str]) -> None:
    """Whole ones, whatever the pieces."""
    words = [
        ("The", Source.TARGET),
        (" cat", Source.ACCEPTED),
        (" sat", Source.ACCEPTED),
        (" on", Source.TARGET),
    ]
    text = "".join(part for part, _ in painted(words, shown))
    assert text == "The[ cat sat] on"


def test_the_last_frame_is_closed() -> None:
    """An answer may end in a drafted token."""
    parts = painted([("a", Source.TARGET), ("b", Source.RELAXED)], ["ab"])
    assert "".join(part for part, _ in parts) == "a{b}"


def test_lines_that_are_broken_keep_their_colours() -> None:
    """A blank that became a line break shifts nothing."""
    words = [("one", Source.ACCEPTED), ("  two", Source.TARGET), (" three", Source.ACCEPTED)]
    parts = painted(words, ["one\ntwo\nthree"], colour=True)
    colours = {char: style for text, style in parts for char in text if not char.isspace()}
    assert (colours["n"], colours["w"], colours["h"]) == ("green", "", "green")


@given(st.lists(st.tuples(st.text(max_size=4), st.sampled_from(Source)), max_size=8))
def test_painting_loses_nothing(words: list[tuple[str, Source]]) -> None:
    """What is shown comes out as it went in, but for frames."""
    text = safe("".join(word for word, _ in words).encode("utf-8", "replace").decode())
    words = [(word.encode("utf-8", "replace").decode(), source) for word, source in words]
    assert "".join(part for part, _ in painted(words, [text], colour=True)) == text


def test_the_legend_is_one_line() -> None:
    tokens = [token(0), token(1, Source.ACCEPTED), token(2, Source.ACCEPTED)]
    assert legend(tokens, lambda _: b"x", colour=False).plain == (
        "target: 1 token, the model's own; [accepted]: 2 tokens, drafted and right\n"
    )
