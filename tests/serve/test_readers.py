"""Clients that leave, read slowly, or never: their answers end, and nobody else waits."""

import asyncio
import json
import logging
import math
import re
import socket
import struct
import threading
from types import SimpleNamespace

import pytest
from helpers.asking import LEAST, begun, body, post, raw, rest
from helpers.waiting import DEADLINE_S, wait

from pyspec.engine.scheduler import Scheduler
from pyspec.requests.bodies import decoded, records_of
from pyspec.serve import ServerSettings, interface
from pyspec.serve.app import INTERFACES
from pyspec.serve.interface import PendingRequest
from pyspec.text.parts import AnswerPart, Piece, RecordResult

BIG = body(stream=True, max_tokens=900, logprobs=True, top_logprobs=20)


def test_a_round_wakes_the_loop_once(serve, monkeypatch):
    """And behind its end: both threads would wait for the interpreter in turns within it."""
    server = serve(draft="none")
    service, inside, woken = server.app.state.fleet.services[0], [], []
    rounds, wake = Scheduler.round, service._loop.call_soon_threadsafe

    def counted(scheduler):
        inside.append(True)
        try:
            return rounds(scheduler)
        finally:
            inside[-1] = False

    def noted(*given):
        if threading.current_thread() is service._thread:
            woken.append(inside[-1])
        return wake(*given)

    monkeypatch.setattr(Scheduler, "round", counted)
    monkeypatch.setattr(service._loop, "call_soon_threadsafe", noted)
    streams = [raw(server, body(str(i), stream=True, max_tokens=40)) for i in range(4)]
    for stream in streams:
        rest(stream)
    server.wait_idle()
    assert woken
    assert not any(woken)
    assert len(woken) <= len(inside)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abrupt", [True, False])
def test_answer_ends_when_its_client_goes(serve, rounds, stream, abrupt):
    server = serve(draft="none", n_ctx=4096, parallel=1)
    connection = raw(server, body(stream=stream, max_tokens=4000))
    wait(lambda: server.batch.load[0] > 0)
    if abrupt:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    wait(lambda: not server.tasks)
    rounds.allow(math.inf)
    server.wait_idle()
    assert server.batch.stats()["tokens"] < 100
    assert post(server, body())[0] == 200


def test_those_who_leave_the_queue_end_no_answer_but_their_own(serve, rounds):
    server = serve(draft="none", parallel=1)
    running = raw(server, body(stream=True, max_tokens=100, logit_bias={"2": -100}))
    wait(lambda: server.batch.load == (1, 0))
    waiting = [raw(server, body(f"other {n}", stream=True)) for n in range(3)]
    wait(lambda: server.batch.load == (1, 3))
    for each in waiting:
        each.close()
    wait(lambda: len(server.tasks) == 1)
    rounds.allow(math.inf)
    assert b"[DONE]" in rest(running)
    server.wait_idle()
    assert server.batch.stats()["tokens"] == 100  # none of theirs was begun


def test_slow_reader_holds_up_nobody(serve):
    server = serve(draft="none", parallel=2, send_buffer=1)
    stuck = raw(server, BIG, SO_RCVBUF=1)
    assert [post(server, body(str(i)))[0] for i in range(5)] == [200] * 5
    server.wait_idle()
    assert server.tasks  # made to the end, and not yet taken
    assert b"[DONE]" in rest(stuck)


def test_reader_that_never_reads_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(interface, "READER_S", 0.3)
    server = serve(draft="none", parallel=1, send_buffer=1)
    stuck = raw(server, BIG, SO_RCVBUF=1)
    wait(lambda: server.tasks)
    server.wait_idle()
    wait(lambda: not server.tasks)
    assert post(server, body())[0] == 200
    stuck.close()


def test_a_client_that_goes_inside_its_body(serve, monkeypatch, caplog):
    """Nothing is said of it: with a traceback in the log for each, a log is soon full."""
    server = serve()
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
    half = socket.create_connection(("127.0.0.1", server.port))
    half.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    wait(lambda: server.tasks)
    half.close()
    wait(lambda: not server.tasks)
    assert caplog.messages == []
    assert post(server, body())[0] == 200


def begin(server, path, **options):
    return begun(server, path, json.dumps({**LEAST[path], "stream": True, **options}))


@pytest.mark.parametrize("path", LEAST)
def test_a_stream_that_waits_shows_that_it_goes_on(serve, rounds, path):
    """Before its first token, as often as it takes; then it comes as if nothing had been.

    The answer's first event is not among the signs, as then another server may give it, but where clients count events.
    """
    sign = b"event: response.in_progress\n" if path == "/v1/responses" else b":\n\n"
    server = serve(draft="none", parallel=1, ping=0.05)
    held = raw(server, body(stream=True))
    wait(lambda: server.batch.load[0] == 1)
    with begin(server, path) as response, held:
        said = b""
        while said.count(sign) < 4:
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

    go, checked = threading.Event(), Service._answers

    def slow(service, asked, name):
        assert go.wait(DEADLINE_S)
        return checked(service, asked, name)

    monkeypatch.setattr(Service, "_answers", slow)
    yield go
    go.set()


@pytest.mark.parametrize("path", LEAST)
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


PARTS = [
    AnswerPart("reasoning", "Hm."), AnswerPart("content", "Yes."), AnswerPart("call", "f", 0, "c"), AnswerPart("arguments", "{}"),
]  # fmt: skip
SAID = [*(Piece((), parts=[part]) for part in PARTS)]
SAID.append(RecordResult.of(PARTS, index=0, id="", prompt_sha256="", finish_reason="tool_calls"))


async def written(path, first):
    """What is streamed where only so much is there at first, and the rest comes while the first event is sent."""
    api = INTERFACES[path]
    body = decoded(api.body, json.dumps(LEAST.get(path, LEAST["/v1/chat/completions"])).encode())
    answers = [SimpleNamespace(record=records_of(body)[0], tokens=[1])]
    pending = PendingRequest(
        ServerSettings("m"), bytes, lambda *_: None, body, answers, "x_y", created=0
    )
    for each in SAID[:first]:
        pending.put(0, each)
    found, rest = b"", SAID[first:]
    async for event in api.events(pending):
        found += event
        while rest:
            pending.put(0, rest.pop(0))
    return re.sub(rb"\d[\d.e-]*", b"N", found)


@pytest.mark.parametrize("path", [*LEAST, "/api/chat"])
def test_what_comes_while_an_event_is_sent_is_told_once_and_in_its_turn(path):
    assert asyncio.run(written(path, 1)) == asyncio.run(written(path, len(SAID)))


REFUSED = {
    "/v1/chat/completions": [("", "invalid_request_error")],
    "/v1/completions": [("", "invalid_request_error")],
    "/v1/messages": [("error", "invalid_request_error")],
    "/v1/responses": [("error", "invalid_request_error"), ("response.failed", "invalid_prompt")],
}


@pytest.mark.parametrize("path", LEAST)
def test_what_is_refused_that_late_is_told_in_the_stream(serve, held, path):
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
    server = serve(ping=0.05)
    with begin(server, "/v1/chat/completions", max_tokens=900):
        pass
    wait(lambda: not server.tasks)
    held.set()
    wait(lambda: not server.app.state.fleet._users)
    server.wait_idle()
