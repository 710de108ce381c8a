"""What reaches a terminal: nothing that drives it, tokens by source, and honest statistics."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from chat.fake import FakeModel, screen
from hypothesis import given
from hypothesis import strategies as st

from pyspec.chat.model import AnswerStats
from pyspec.chat.render import stats_line
from pyspec.display import Span, safe, spans
from pyspec.tokens import Source, Token

STATS = AnswerStats(
    tokens=40, plain_tokens=16, rate=30.0, plain_rate=20.0, drafted=12, verified=10, accepted=8, relaxed=2,
    nats=0.5, mean_length=1.5, prompt_tokens=37, prompt_kept=0, first_token_ms=9.0, total_ms=99.0, rule="margin",
    draft="lookup", companion="none",
)  # fmt: skip


def token(number: int, source: Source = Source.TARGET) -> Token:
    """A token of an id; relaxed ones have a gap."""
    gap = 0.5 if source is Source.RELAXED else 0.0
    return Token(number, source, gap, ord("-"))


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b]52;c;AAAA\x07",  # clipboard
        "\x1b[2J\x1b]0;title\x07",
        "\x9b31m",  # the CSI of the C1 set
        "\r\x08\x00\x7f",
        "\u202e\u2066\u2069\u200f\u061c",  # bidirectional controls
        "\ud800",  # a lone surrogate
    ],
)
def test_safe_drops_what_drives_a_terminal(hostile: str) -> None:
    """Escape sequences lose what begins them, so only harmless letters are left."""
    shown = safe(f"a{hostile}b")
    assert shown[0] + shown[-1] == "ab"
    assert shown.isprintable()


@given(st.text())
def test_safe_text_has_no_control_characters(text: str) -> None:
    """Whatever comes, no control, format or surrogate character but newline, tab and joiners."""
    left = set(safe(text)) - set("\n\t\u200c\u200d")
    assert not {unicodedata.category(char) for char in left} & {"Cc", "Cf", "Cs"}


@pytest.mark.parametrize(
    "text", ["tab\tand\nnewline", "\u0645\u06cc\u200c\u062e", "👩\u200d🔬", "naïve 中文"]
)
def test_safe_keeps_text(text: str) -> None:
    """Languages and emoji stay whole."""
    assert safe(text) == text


def test_spans_join_neighbours_and_split_relaxed() -> None:
    """Stretches of one source are one span; each relaxed token is its own."""
    target, accepted, relaxed = Source
    sources = (target, accepted, accepted, relaxed, relaxed)
    tokens = [token(ord(char), source) for char, source in zip("abcde", sources, strict=True)]
    made = spans(tokens, FakeModel([]).piece)
    assert [(span.text, span.source) for span in made] == [
        ("a", Source.TARGET),
        ("bc", Source.ACCEPTED),
        ("d", Source.RELAXED),
        ("e", Source.RELAXED),
    ]


def test_a_character_split_over_tokens_is_whole() -> None:
    """Bytes of one character in two tokens are shown with the second."""
    data = "é".encode()
    made = spans([token(0), token(1, Source.ACCEPTED)], lambda at: data[at : at + 1])
    assert made == [Span("", Source.TARGET), Span("é", Source.ACCEPTED)]


def test_tokens_in_colour_have_no_frames() -> None:
    """A colour terminal gets colours instead of brackets."""
    shown, text = screen(colour=True)
    shown.tokens([token(ord("a")), token(ord("b"), Source.ACCEPTED)], FakeModel([]).piece)
    assert "a\x1b[32mb\x1b[0m" in text.getvalue()
    assert "[b]" not in text.getvalue()


def test_tokens_cannot_drive_the_terminal() -> None:
    """Escapes inside tokens are dropped in the colour view, in the list of relaxed ones too."""
    shown, text = screen(colour=True)
    shown.tokens([token(0x1B), token(0x9B, Source.RELAXED)], lambda at: chr(at).encode() + b"]52;x")
    assert "\x1b]" not in text.getvalue()
    assert "\x9b" not in text.getvalue()


def test_answers_cannot_drive_the_terminal() -> None:
    """Neither answers, nor what commands say, nor notes write an escape."""
    shown, text = screen()
    with shown.answering() as write:
        write("a\x1b]0;x\x07")
    for say in (shown.say, shown.note, shown.error):
        say("\x1b[31mred")
    assert text.getvalue() == "a]0;x\n[31mred\n[31mred\n[31mred\n"


def test_markup_of_models_is_text() -> None:
    """Square brackets in a name or an answer are no markup."""
    shown, text = screen()
    shown.note("[bold]x[/bold]")
    assert text.getvalue() == "[bold]x[/bold]\n"


def test_answers_end_their_line_once() -> None:
    """A newline is added where the answer has none at its end."""
    shown, text = screen()
    for answer in ("one", "two\n", ""):
        with shown.answering() as write:
            write(answer)
    assert text.getvalue() == "one\ntwo\n"


def test_stats_line() -> None:
    """One line with everything that the issue of speed and trust needs."""
    assert stats_line(STATS) == (
        "40 tokens (16 plain, to time them) | 30.0 tok/s | 1.50x plain | 8 of 10 accepted, 12 drafted"
        " | 1.50 a round | 2 relaxed (0.50 nats) | prompt 37, 0 kept"
    )


@pytest.mark.parametrize("change", [{"plain_rate": None}, {"tokens": 16}, {"draft": "none"}])
def test_no_speedup_is_invented(change: dict[str, object]) -> None:
    """Without a plain rate, or without speculation, no speed-up is shown."""
    stats = replace(STATS, **change)  # type: ignore[arg-type]
    assert stats.speedup is None
    assert "x plain" not in stats_line(stats)
