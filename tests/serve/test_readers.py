"""Clients that leave, read slowly, or never: their answers end, and nobody else waits."""

from __future__ import annotations

import json
import logging
import math
import socket
import struct
import threading

import pytest
from helpers.asking import body, first_text, post, raw
from helpers.waiting import wait

from pyspec.engine.scheduler import Scheduler
from pyspec.serve.apis import interface


def test_text_comes_while_it_is_made(serve, rounds):
    """The first event is there before more rounds are made."""
    server = serve(draft="none")
    rounds.allow(20)
    connection = raw(server, body(stream=True, max_tokens=900))
    first_text(connection)
    assert server.batch.load[0] == 1
    connection.close()


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
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += stream.recv(1 << 16)
        stream.close()
    server.wait_idle()
    assert woken
    assert not any(woken)
    assert len(woken) <= len(inside)


def test_chunks_are_alike_but_for_their_texts(serve):
    """What is made once for all chunks is what each would say, whatever its text."""
    server = serve(draft="none")
    stream = raw(server, body(stream=True, max_tokens=40))
    text = b""
    while not text.endswith(b"0\r\n\r\n"):
        text += stream.recv(1 << 16)
    stream.close()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: {")]
    first, *chunks, last = events
    plain = {key: value for key, value in first.items() if key != "choices"}
    bare = {**first["choices"][0], "delta": {}}
    said = ""
    for chunk in chunks:
        (choice,) = chunk.pop("choices")
        assert chunk == plain
        assert (choice["delta"].keys(), {**choice, "delta": {}}) == ({"content"}, bare)
        said += choice["delta"]["content"]
    assert said == post(server, body(max_tokens=40))[1]["choices"][0]["message"]["content"]
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abrupt", [True, False])
def test_answer_ends_when_its_client_goes(serve, rounds, stream, abrupt):
    """Closed or reset: the sequence is free at once, and its tokens are not made for nobody."""
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


def test_waiting_request_leaves_too(serve, rounds):
    """One that never ran does not run when its turn comes."""
    server = serve(draft="none", parallel=1)
    running = raw(server, body(stream=True))
    wait(lambda: server.batch.load == (1, 0))
    waiting = raw(server, body("other", stream=True))
    wait(lambda: server.batch.load == (1, 1))
    waiting.close()
    wait(lambda: len(server.tasks) == 1)
    rounds.allow(math.inf)
    server.wait_idle()
    assert server.batch.stats()["tokens"] == 8
    running.close()


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
    said = b""
    while b"[DONE]" not in said:
        said += (more := running.recv(1 << 16))
        assert more
    running.close()
    server.wait_idle()


def test_slow_reader_holds_up_nobody(serve):
    """While one reads nothing at all, others are answered, and its answer is made to the end."""
    server = serve(draft="none", parallel=2, send_buffer=1)
    stuck = raw(
        server, body(stream=True, max_tokens=900, logprobs=True, top_logprobs=20), SO_RCVBUF=1
    )
    assert [post(server, body(str(i)))[0] for i in range(5)] == [200] * 5
    server.wait_idle()
    assert server.tasks  # made to the end, and not yet taken
    text = b""
    while not text.endswith(b"0\r\n\r\n"):
        text += stuck.recv(1 << 16)
    assert b"[DONE]" in text
    stuck.close()


def test_reader_that_never_reads_is_given_up(serve, monkeypatch):
    """After a time its connection is closed; nothing of it stays."""
    monkeypatch.setattr(interface, "READER_S", 0.3)
    server = serve(draft="none", parallel=1, send_buffer=1)
    big = body(stream=True, max_tokens=900, logprobs=True, top_logprobs=20)
    stuck = raw(server, big, SO_RCVBUF=1)
    wait(lambda: server.tasks)
    server.wait_idle()
    wait(lambda: not server.tasks)
    assert post(server, body())[0] == 200
    stuck.close()


def test_a_client_that_goes_inside_its_body(serve):
    """Nothing is said of it: with a traceback in the log for each, a log is soon full."""
    server = serve()
    said = []
    log = logging.getLogger("uvicorn.error")
    handler = logging.Handler()
    handler.emit = said.append
    log.addHandler(handler)
    try:
        half = socket.create_connection(("127.0.0.1", server.port))
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
        wait(lambda: server.tasks)
        half.close()
        wait(lambda: not server.tasks)
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in said] == []
    assert post(server, body())[0] == 200
