"""What is typed while nobody reads: no echo, and all of it for the next prompt."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from helpers.waiting import DEADLINE_S, wait

from pyspec.chat.ahead import TypeAhead, typed_text

termios = pytest.importorskip("termios", reason="pseudo-terminals need POSIX")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"hello\r", "hello"),
        (b"one\r\ntwo\rthree", "one\ntwo\nthree"),
        (b"\x1b[200~a\n/help\nb\x1b[201~", "a\n/help\nb"),
        (b"abc\x7f\x7fd", "ad"),
        (b"first\nabc\x15d", "first\nd"),
        (b"a\x1b[Ab\x1bOPc\x04\x1b", "abc"),
        ("\u00e9".encode() + b"\xff", "\u00e9"),
    ],
)
def test_keys_are_text(data: bytes, text: str) -> None:
    """Without those that edit nothing here; marks of a paste are none of it."""
    assert typed_text(data) == text


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def test_nothing_is_shown_and_nothing_lost(pair: tuple[int, int]) -> None:
    """More than the kernel keeps of a terminal's input; afterwards it is as before."""
    master, slave = pair
    before, ahead = termios.tcgetattr(slave), TypeAhead(slave)
    lines = b"".join(b"line %d\r" % n for n in range(2000))
    with ahead.collecting():
        for start in range(0, len(lines), 1000):
            os.write(master, lines[start : start + 1000])
        wait(lambda: ahead._data.count(b"\r") + ahead._data.count(b"\n") == 2000)
    os.set_blocking(master, False)
    with pytest.raises(BlockingIOError):
        os.read(master, 1)
    assert ahead.taken().splitlines() == [f"line {n}" for n in range(2000)]
    assert ahead.taken() == ""
    assert termios.tcgetattr(slave) == before


def test_a_paste_that_has_begun_is_read_to_its_end(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest would be taken for lines."""
    monkeypatch.setattr("pyspec.chat.ahead._TIMEOUT_S", DEADLINE_S)
    master, slave = pair
    ahead = TypeAhead(slave)
    rest = threading.Timer(0.1, os.write, (master, b"two\x1b[201~"))
    with ahead.collecting():
        os.write(master, b"\x1b[200~one\n")
        wait(lambda: ahead._data)
        rest.start()
    rest.join()
    assert ahead.taken() == "one\ntwo"


def test_where_there_is_no_terminal_nothing_is_read() -> None:
    with open(os.devnull) as file, TypeAhead(file.fileno()).collecting():
        pass
