"""Tokens by source: as an answer comes, and afterwards."""

from __future__ import annotations

import pytest
from helpers.fake_chat import screen
from hypothesis import given
from hypothesis import strategies as st

from pyspec.screen.token_view import TokenPaint, print_legend
from pyspec.screen.words import safe
from pyspec.text.parts import Source, Token


def token(number: int, source: Source = Source.TARGET) -> Token:
    """A token of an id; relaxed ones have a gap."""
    gap = 0.5 if source is Source.RELAXED else 0.0
    return Token(number, source, gap, ord("-"))


def test_tokens_cannot_drive_the_terminal() -> None:
    """Escapes inside tokens are dropped, in the list of relaxed ones too."""
    shown, text = screen(colour=True)
    tokens = [token(0x1B), token(0x9B, Source.RELAXED)]
    print_legend(shown.out, tokens, lambda at: chr(at).encode() + b"]52;x")
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


def test_the_legend_counts_sources_and_names_what_was_preferred() -> None:
    shown, text = screen()
    tokens = [token(0), *(token(1, Source.ACCEPTED) for _ in range(2)), token(2, Source.RELAXED)]
    print_legend(shown.out, tokens, lambda number: b"abcd"[number : number + 1])
    assert text.getvalue() == (
        "\ntarget: 1 token, the model's own; [accepted]: 2 tokens, drafted and right; "
        "{relaxed}: 1 token, drafted and close\n"
        "(1) 'c', the target preferred '' by 0.500 nats\n"
    )
