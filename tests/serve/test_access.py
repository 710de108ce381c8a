"""The line of each request: for people on a terminal, without its text."""

from __future__ import annotations

import math
import re

import pytest
from helpers.asking import body, post, raw
from helpers.waiting import wait

from pyspec.cli.serve import ServerOptions
from pyspec.serve.access import as_text


def test_a_request_is_told_in_words(serve):
    """With its model, tokens and time; never its text."""
    lines = []
    server = serve(log=lines.append)
    post(server, body("hello", max_tokens=3))
    post(server, b"{}", "/v1/nothing")
    wait(lambda: len(lines) == 2)
    first, second = map(as_text, lines)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d POST /v1/chat/completions 200, tiny, \d+ tokens read, 3 made, \d+\.\d\d s",
        first,
    )
    assert re.fullmatch(r"\d\d:\d\d:\d\d POST /v1/nothing 404, \d+\.\d\d s", second)
    assert "hello" not in first


def test_a_cancelled_one_is_told_so(serve, rounds):
    lines = []
    server = serve(log=lines.append)
    connection = raw(server, body("hello", max_tokens=900))
    wait(lambda: server.batch.load[0] == 1)
    connection.close()
    wait(lambda: not server.tasks)
    rounds.allow(math.inf)
    wait(lambda: len(lines) == 1)
    assert as_text(lines[0]).endswith(" s, cancelled")


@pytest.mark.parametrize(
    ("options", "terminal", "told"),
    [({}, True, True), ({"quiet": True}, True, False), ({}, False, False), ({"quiet": True, "log_json": True}, True, True)],
)  # fmt: skip
def test_a_terminal_gets_lines_unless_quiet(monkeypatch, options, terminal, told):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert (ServerOptions(**options).serving("x").log is not None) == told
