"""What reaches a terminal: nothing that drives it, tokens by source, honest statistics, and what takes a while."""

import io
import unicodedata

import pytest
from helpers.fake_chat import screen
from helpers.waiting import wait
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pyspec import screen as display
from pyspec.screen import Screen, TokenPaint, Wrapper, print_legend
from pyspec.text.parts import AnswerPart, Piece, Source, Token, safe, speed_sentence

BLOCK = {
    "rounds": 25, "mean_length": 1.6, "drafted": 12, "verified": 10, "accepted": 8, "relaxed": 2, "relaxed_nats": 0.5,
    "prompt_tokens": 37, "prompt_kept": 0, "draft": "lookup", "times_plain": 1.5,
    "plain": {"tokens_per_second": 20.0, "error": 0.02},
}  # fmt: skip


def said(text, kind="content"):
    return Piece((), parts=[AnswerPart(kind, text)])


@given(st.text(st.characters() | st.sampled_from("\x1b\x07\x9b\r\x7f\u202e\u2066\ud800")))
def test_safe_text_has_no_control_characters(text):
    """Nor what turns the direction of writing."""
    left = set(safe(text)) - set("\n\t\u200c\u200d")
    assert not {unicodedata.category(char) for char in left} & {"Cc", "Cf", "Cs"}


@pytest.mark.parametrize(
    "text", ["tab\tand\nnewline", "\u0645\u06cc\u200c\u062e", "👩\u200d🔬", "naïve 中文"]
)
def test_safe_keeps_text(text):
    assert safe(text) == text


def test_answers_cannot_drive_the_terminal():
    shown, text = screen()
    with shown.replying() as write:
        write(said("a\x1b]0;x\x07"))
    for say in (shown.say, shown.note):
        say("\x1b[31mred")
    assert text.getvalue() == "a]0;x\n[31mred\n[31mred\n"


def test_answers_end_their_line_once():
    shown, text = screen()
    for answer in ("one", "two\n", ""):
        with shown.replying() as write:
            write(said(answer))
    assert text.getvalue() == "one\ntwo\n"


@pytest.mark.parametrize(("change", "says"), [
    ({}, ", 1.5 times plain decoding"), ({"times_plain": 13.2}, ", 13 times plain decoding"),
    ({"times_plain": 1.02}, ", as fast as plain decoding"), ({"times_plain": None}, ""),
    ({"times_plain": 0.8}, ", slower than plain decoding (0.80 times)"),
    ({"verified": 0}, " (drafts off: they would not have paid off here)"), ({"draft": "none"}, ", plain decoding"),
])  # fmt: skip
def test_one_plain_sentence(change, says):
    assert speed_sentence({**BLOCK, **change}, 30.0) == f"30.0 tokens/s{says}"
    assert speed_sentence({**BLOCK, "rounds": 0}, 0.0) == "stopped before the first token"


@pytest.mark.parametrize(("text", "wanted"), [
    ("one two three", "one two\nthree"), ("one two  three four", "one two\nthree\nfour"), ("a\n  b c\n", "a\n  b c\n"),
    ("0123456789 x", "0123456789 x"), ("你好你好你好", "你好你好\n你好"), ("tab\tx y", "tab\tx\ny"),
])  # fmt: skip
@pytest.mark.parametrize("step", [1, 2, 100])
def test_words_wrap_at_the_edge(text, wanted, step):
    wrapper = Wrapper(9)
    shown = "".join(wrapper.push(text[i : i + step]) for i in range(0, len(text), step))
    assert shown + wrapper.finish() == wanted


@given(st.lists(st.text()), st.integers(1, 40))
def test_wrapping_loses_no_character(pieces, width):
    wrapper = Wrapper(width)
    shown = "".join(wrapper.push(piece) for piece in pieces) + wrapper.finish()
    assert "".join(shown.split()) == "".join("".join(pieces).split())


def test_reasoning_is_dim_and_stands_above_the_text():
    for reasoning, wanted in ((True, "\x1b[2mHm.\x1b[0m\n\nYes.\n"), (False, "Yes.\n")):
        shown, text = screen(colour=True)
        with shown.replying(wrap=False, reasoning=reasoning) as write:
            write(said("Hm.", "reasoning"))
            write(said("Yes."))
        assert text.getvalue() == wanted


@pytest.mark.parametrize(("width", "wanted"), [
    (None, ["name   one two three four five-six", "longer seven"]),
    (28, ["name   one two three four", "       five-six", "longer seven"]),
    (10, ["name", "  one two", "  three four", "  five-six", "longer", "  seven"]),
])  # fmt: skip
def test_a_table_fits_its_terminal(width, wanted):
    """Values are folded in one column; a pipe gets whole lines."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=width is not None, width=width or 20, no_color=True)
    Screen(console, console).table([("name", "one two three four five-six"), ("longer", "seven")])
    assert [line.rstrip() for line in out.getvalue().splitlines()] == wanted


def test_a_listing_has_whole_names_in_columns(capsys):
    rows = [["a-very-long-name", "14.92", "what it is"], ["b[x]\x1b[2J\n", "0.02", "-"]]
    display.print_listing(("name", "GB", "what"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "name                 GB  what",
        "a-very-long-name  14.92  what it is",
        "b[x][2J            0.02  -",
    ]


def test_brackets_are_no_markup():
    """Defaults stand in them, and users' own text may."""
    shown, text = screen(colour=True)
    for say in (shown.say, shown.note):
        say("a [default] of [bold]")
    shown.table([("[name]", "[value]")])
    with shown.replying() as write:
        write(said("[red]"))
    assert text.getvalue().count("a [default] of [bold]") == 2
    assert "[name] [value]\n[red]\n" in text.getvalue()


def token(number, source=Source.TARGET):
    gap = 0.5 if source is Source.RELAXED else 0.0
    return Token(number, source, gap, ord("-"))


def painted(words, shown):
    data = [word.encode() for word, _ in words]
    paint = TokenPaint(data.__getitem__)
    paint.take([token(i, source) for i, (_, source) in enumerate(words)])
    return [part for text in shown for part in paint(text)]


def test_an_answer_is_coloured_as_it_comes():
    words = [("The", Source.TARGET), (" cat", Source.ACCEPTED), (" sat", Source.RELAXED)]
    assert painted(words, ["The c", "at sat"]) == [
        ("The", ""), (" c", "green"), ("at", "green"), (" sat", "bold yellow"),
    ]  # fmt: skip


def test_lines_that_are_broken_keep_their_colours():
    words = [("one", Source.ACCEPTED), ("  two", Source.TARGET), (" three", Source.ACCEPTED)]
    parts = painted(words, ["one\ntwo\nthree"])
    colours = {char: style for text, style in parts for char in text if not char.isspace()}
    assert (colours["n"], colours["w"], colours["h"]) == ("green", "", "green")


@given(st.lists(st.tuples(st.text(max_size=4), st.sampled_from(Source)), max_size=8))
def test_painting_loses_nothing(words):
    text = safe("".join(word for word, _ in words).encode("utf-8", "replace").decode())
    words = [(word.encode("utf-8", "replace").decode(), source) for word, source in words]
    assert "".join(part for part, _ in painted(words, [text])) == text


def test_the_legend_counts_sources():
    shown, text = screen()
    tokens = [token(0), *(token(1, Source.ACCEPTED) for _ in range(2)), token(2, Source.RELAXED)]
    print_legend(shown.out, tokens)
    assert text.getvalue() == (
        "\ntarget: 1 token, the model's own; accepted: 2 tokens, drafted and right; "
        "relaxed: 1 token, drafted and close\n"
    )


@pytest.fixture(params=[{"force_terminal": True}, {}])
def console(request, monkeypatch):
    made = Console(file=io.StringIO(), width=80, **request.param)
    monkeypatch.setattr(display, "Console", lambda **_: made)
    return made


def shown(console):
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_alone_is_told_what_takes_long(console):
    """Brackets of a name are shown, which rich would take for markup; pipes and logs stay clean."""
    with display.busy("loading model[bold].gguf"):
        if console.is_terminal:
            wait(lambda: "loading model[bold].gguf" in shown(console))
    assert console.is_terminal or shown(console) == ""


@pytest.mark.parametrize("console", [{}], indirect=True)
def test_what_is_fetched_is_a_line(console):
    with display.store_progress() as show:
        show("fetching x", 1, 2)
        show("fetching x", 2, 2)
    assert shown(console) == "fetching x ...\n"


def test_progress_of_unknown_length_has_no_count(monkeypatch):
    """`0/0` says nothing; what is done does."""
    monkeypatch.setattr(display, "LINE_S", 0.0)
    out = io.StringIO()
    with display.run_progress(Console(file=out, width=80)) as show:
        show(0, 0, "loading")
        show(1, 4, "answers")
    assert out.getvalue().splitlines() == ["loading", "1/4 answers"]


def test_the_pace_is_that_of_the_steps(monkeypatch):
    """A start of 60 s, models and workers, says nothing of the nine that are left."""
    now, out = [0.0], io.StringIO()
    monkeypatch.setattr(display, "monotonic", lambda: now[0])
    with display.run_progress(Console(file=out, width=80)) as show:
        for done, now[0] in ((1, 60.0), (2, 65.0), (3, 71.0)):
            show(done, 10, "records")
    assert out.getvalue().splitlines() == ["1/10 records", "3/10 records, about 39 s left"]


def test_a_class_that_fetches_shows_it(monkeypatch, tiny_ascii, capsys):
    import pyspec.llama.speculative

    def fetched(_name, show, *_place):
        show("fetching some-model", 1, 2)
        return tiny_ascii

    monkeypatch.setattr("pyspec.screen.resolve", fetched)
    with pyspec.llama.speculative.SpeculativeLlama("some-model", draft="none", n_threads=1):
        assert "fetching some-model ..." in capsys.readouterr().err
