"""Streams with nothing to say: proxies and clients give up those that are silent for a minute, or five."""

from __future__ import annotations

import json
import math
import re
import threading

import pytest
from helpers.asking import begun, body, post, raw
from helpers.waiting import DEADLINE_S, wait

TURNS = [{"role": "user", "content": "hello"}]
DOORS = {
    "/v1/chat/completions": ({"messages": TURNS, "max_tokens": 8}, b":\n\n"),
    "/v1/completions": ({"prompt": "hello", "max_tokens": 8}, b":\n\n"),
    "/v1/messages": ({"messages": TURNS, "max_tokens": 8}, b":\n\n"),
    "/v1/responses": ({"input": "hello", "max_output_tokens": 8}, b"event: response.in_progress\n"),
}


def begin(server, path, **options):
    return begun(server, path, json.dumps({**DOORS[path][0], "stream": True, **options}))


@pytest.mark.parametrize("path", DOORS)
def test_a_stream_that_waits_shows_that_it_goes_on(serve, rounds, path):
    """Before its first token, as often as it takes; then it comes as if nothing had been.

    The answer's first event is not among the signs, as then another server may give it, but where clients count events.
    """
    server = serve(draft="none", parallel=1, ping=0.05)
    held = raw(server, body(stream=True))
    wait(lambda: server.batch.load[0] == 1)
    with begin(server, path) as response, held:
        said = b""
        while said.count(DOORS[path][1]) < 4:
            said += response.read1(1 << 16)
        assert (b"data:" in said) is (path == "/v1/responses")
        rounds.allow(math.inf)
        said += response.read()
    shown = re.findall(rb'"sequence_number":(\d+)', said)
    assert [int(n) for n in shown] == list(range(len(shown)))
    assert said.rstrip().endswith((b"[DONE]", b"}"))
    assert b'"error":{' not in said


@pytest.fixture
def held(monkeypatch):
    """Holds requests back before they are understood, as one whose model is loaded; set, it lets them go."""
    from pyspec.serve.service import Service

    go, checked = threading.Event(), Service._checked

    def slow(service, asked, name):
        assert go.wait(DEADLINE_S)
        return checked(service, asked, name)

    monkeypatch.setattr(Service, "_checked", slow)
    yield go
    go.set()


@pytest.mark.parametrize("path", DOORS)
def test_a_stream_that_has_not_begun_shows_that_it_goes_on(serve, held, path):
    """Its status is there before it is known what it comes to; then it comes as if nothing had been."""
    server = serve(ping=0.05)
    with begin(server, path) as response:
        assert response.status == 200
        said = b""
        while said.count(b":\n\n") < 3:
            said += response.read1(1 << 16)
        held.set()
        said += response.read()
    assert said.rstrip().endswith((b"[DONE]", b"}"))
    assert b'"error":{' not in said
    server.wait_idle()


REFUSED = {
    "/v1/chat/completions": [("", "invalid_request_error")],
    "/v1/completions": [("", "invalid_request_error")],
    "/v1/messages": [("error", "invalid_request_error")],
    "/v1/responses": [("error", "invalid_request_error"), ("response.failed", "invalid_prompt")],
}


@pytest.mark.parametrize("path", DOORS)
def test_what_is_refused_that_late_is_told_in_the_stream(serve, held, path):
    """In the form of its interface, with the sentence that would have been its body."""
    server = serve(ping=0.05)
    with begin(server, path, temperature=-1) as response:
        held.set()
        events = [line[6:] for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    found = []
    for told in map(json.loads, events):
        error = told["response"]["error"] if "response" in told else told["error"]
        assert "temperature is -1" in error["message"]
        found.append((told.get("type", ""), error.get("type") or error["code"]))
    assert found == REFUSED[path]


def test_one_who_leaves_before_it_begins_leaves_nothing(serve, held):
    """The answer is not made, and its model may make room for another."""
    server = serve(ping=0.05)
    with begin(server, "/v1/chat/completions", max_tokens=900):
        pass
    wait(lambda: not server.tasks)
    held.set()
    wait(lambda: not server.app.state.fleet._users)
    server.wait_idle()


def test_a_stream_that_speaks_is_not_disturbed(serve):
    """Its tokens show enough: between them there is nothing else."""
    server = serve(draft="none", ping=DEADLINE_S)
    with begin(server, "/v1/chat/completions") as response:
        said = response.read()
    assert b"\n\n:" not in said
    assert post(server, body())[0] == 200
