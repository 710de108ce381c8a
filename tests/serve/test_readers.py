"""Clients that leave, read slowly, or never: their answers end, and nobody else waits."""

from __future__ import annotations

import logging
import socket
import struct

import pytest
from asking import body, post, raw
from waiting import wait

from pyspec.serve import app


def test_text_comes_while_it_is_made(serve):
    """The first event is there long before the last."""
    server = serve(draft="none")
    connection = raw(server, body(stream=True, max_tokens=900))
    first = b""
    while b'"content":"' not in first.replace(b'"content":""', b""):
        first += connection.recv(4096)
    assert server.batch.load[0] == 1
    connection.close()
    server.wait_idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abrupt", [True, False])
def test_answer_ends_when_its_client_goes(serve, stream, abrupt):
    """Closed or reset: the sequence is free at once, and its tokens are not made for nobody."""
    server = serve(draft="none", n_ctx=4096, parallel=1)
    connection = raw(server, body(stream=stream, max_tokens=4000))
    wait(lambda: server.batch.load[0] > 0)
    if abrupt:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    server.wait_idle()
    assert server.batch.stats()["tokens"] < 3900
    assert post(server, body())[0] == 200


def test_waiting_request_leaves_too(serve):
    """One that never ran does not run when its turn comes."""
    server = serve(draft="none", n_ctx=4096, parallel=1)
    running = raw(server, body(stream=True, max_tokens=2000))
    waiting = raw(server, body("other", stream=True))
    wait(lambda: server.batch.load == (1, 1))
    waiting.close()
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
    monkeypatch.setattr(app, "READER_S", 0.3)
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
