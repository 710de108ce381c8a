"""Streams with nothing to say: proxies and clients give up those that are silent for a minute, or five."""

from __future__ import annotations

import http.client
import json
import re

import pytest
from asking import body, post, raw
from waiting import DEADLINE_S, wait

TURNS = [{"role": "user", "content": "hello"}]
DOORS = {
    "/v1/chat/completions": ({"messages": TURNS, "max_tokens": 8}, b"\n\n:\n\n"),
    "/v1/completions": ({"prompt": "hello", "max_tokens": 8}, b":\n\n"),
    "/v1/messages": ({"messages": TURNS, "max_tokens": 8}, b"event: ping\n"),
    "/v1/responses": ({"input": "hello", "max_output_tokens": 8}, b"event: response.in_progress\n"),
}


def begin(server, path):
    """A stream that was asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    data = json.dumps({**DOORS[path][0], "stream": True})
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


@pytest.mark.parametrize("path", DOORS)
def test_a_stream_that_waits_shows_that_it_goes_on(serve, path):
    """Before its first token, as often as it takes; then it comes as if nothing had been."""
    server = serve(draft="none", n_ctx=4096, parallel=1, ping=0.05)
    held = raw(server, body(stream=True, max_tokens=4000, logit_bias={"2": -100}))
    wait(lambda: server.batch.load[0] == 1)
    connection, response = begin(server, path)
    said = b""
    while said.count(DOORS[path][1]) < 4:
        said += response.read1(1 << 16)
    held.close()
    said += response.read()
    connection.close()
    shown = re.findall(rb'"sequence_number":(\d+)', said)
    assert [int(n) for n in shown] == list(range(len(shown)))
    assert said.rstrip().endswith((b"[DONE]", b"}"))
    assert b'"error":{' not in said


def test_a_stream_that_speaks_is_not_disturbed(serve):
    """Its tokens show enough: between them there is nothing else."""
    server = serve(draft="none", ping=DEADLINE_S)
    connection, response = begin(server, "/v1/chat/completions")
    said = response.read()
    connection.close()
    assert b"\n\n:" not in said
    assert post(server, body())[0] == 200
