"""Clients that are slow, dead, rude or strangers: none of them harms the others."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import struct
import threading

import pytest
from waiting import DEADLINE_S, wait

from pyspec.serve import app


def body(text="hello", **options):
    """A chat completion's body."""
    messages = [{"role": "user", "content": text}]
    return json.dumps({"messages": messages, "max_tokens": 8, **options}).encode()


def post(server, data, path="/v1/chat/completions", **headers):
    """The status and the answer of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    head = {"Content-Type": "application/json", **headers}
    connection.request("POST", path, data, {k: v for k, v in head.items() if v is not None})
    response = connection.getresponse()
    told = json.loads(response.read())
    connection.close()
    return response.status, told


def raw(server, data, **options):
    """A socket on which a request was sent."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(DEADLINE_S)
    for (
        name,
        value,
    ) in (
        options.items()
    ):  # before it connects: a window that shrinks is probed for 0.1 s a kilobyte
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection


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


def test_half_a_request_takes_nothing(serve):
    """Headers or a body that never end: others are served, and nothing runs."""
    server = serve()
    dead = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in dead[:10]:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    for connection in dead[10:]:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
    assert post(server, body())[0] == 200
    assert server.batch.load == (0, 0)
    for connection in dead:
        connection.close()


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


def test_late_headers_end_the_connection(serve, monkeypatch):
    """Also those of a second request on it."""
    from pyspec.serve import guard

    monkeypatch.setattr(guard, "HEADERS_S", 0.3)
    server = serve()
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    for before in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        connection.sendall(before + begun)
        while connection.recv(4096):
            pass
        connection.close()


def test_half_sent_requests_shut_nobody_out(serve):
    """More of them than there is room for: the oldest goes."""
    from pyspec.serve import guard

    server = serve()
    dead = []
    for _ in range(guard.MOST_HALF + 100):
        dead.append(socket.create_connection(("127.0.0.1", server.port)))
        dead[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert post(server, body())[0] == 200
    assert len(guard.GuardedProtocol.half()) <= guard.MOST_HALF
    for connection in dead:
        connection.close()


def test_answers_are_counted_before_anything_is_made_of_them(serve, monkeypatch):
    """200,000 prompts took 3 GB to be refused."""
    from pyspec.batch import bodies

    server = serve(max_body=1 << 20)
    monkeypatch.setattr(bodies, "records_of", None)
    data = json.dumps({"prompt": ["a"] * 100_000, "n": 16}).encode()
    assert post(server, data, "/v1/completions")[0] == 429


def test_a_grammar_that_never_ends_keeps_nobody_waiting(serve):
    """Each is refused for its own request; a stream beside it goes on, and its sampler is not held up."""
    server = serve(draft="none", n_ctx=4096, parallel=3, max_body=1 << 21)
    stream = raw(server, body(stream=True, max_tokens=3000, logit_bias={"2": -100}))
    bombs = [
        'root ::= ((("a"?){100}){100}){100}',
        "root ::= " + " | ".join(f'"a{i}"' for i in range(60_000)),
        "root ::= " + "[" * 100_000,
        'root ::= "a" root "b" | "a" root "c" | "a"',
    ]
    bias = {str(ord("a") - 33 + 5): 100}
    for grammar in bombs:
        status, told = post(server, body(grammar=grammar, logit_bias=bias, max_tokens=500))
        assert status == 400
        assert "grammar" in told["error"]["message"]
    assert server.batch.load[0] <= 1
    assert (
        post(server, body(grammar='root ::= "ab"'))[1]["choices"][0]["message"]["content"] == "ab"
    )
    stream.close()
    server.wait_idle()


@pytest.mark.parametrize(
    "mistake",
    [
        {"messages": [{"role": "assistant", "tool_calls": [{"function": "x"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": 5}]},
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
        {"tools": [{"function": {"name": "f"}}], "tool_choice": {"function": "x"}},
        {"tools": [{"function": {"name": "f"}}], "tool_choice": "f"},
        {"tools": [{"function": {"name": "f", "parameters": "x"}}]},
        {"tools": [{"function": {"name": 5}}]},
        {"response_format": {"type": "json_schema", "json_schema": True}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
        {"response_format": {"type": ["x"]}},
        {"logit_bias": {"99999999999": 1}},
        {"stop": ["x"] * 90_000},
        {"stop": [""]},
        {"n": 0},
        {"grammar": "\0"},
    ],
)
def test_mistakes_of_clients_are_400(serve, mistake, caplog):
    """No 500, and no traceback in the log."""
    server = serve(max_body=1 << 20)
    status, told = post(server, body(**mistake))
    assert (status, bool(told["error"]["message"])) == (400, True)
    assert "Traceback" not in caplog.text


def test_a_dead_end_is_no_reason_to_read_others_anew(serve):
    """A grammar that allows nothing more ends its answer alone: no other is put aside and read again."""
    server = serve(draft="none", n_ctx=4096, parallel=2)
    stream = raw(server, body(stream=True, max_tokens=3000, logit_bias={"2": -100}))
    wait(lambda: server.batch.load[0] == 1)
    dead = body(grammar='root ::= "a" [^\\U00000000-\\U0010FFFF]')
    assert post(server, dead)[0] == 500
    (answer,) = server.batch._scheduler.active.values()
    assert not answer.job.alone
    stream.close()
    server.wait_idle()


def test_queue_is_bounded(serve):
    """More than run and may wait: 429, when to come again, and room again afterwards."""
    server = serve(draft="none", n_ctx=4096, parallel=1, queue=1)
    held = [raw(server, body(stream=True, max_tokens=4000)) for _ in range(2)]
    wait(lambda: server.batch.load == (1, 1))
    status, told = post(server, body())
    assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
    for connection in held:
        connection.close()
    server.wait_idle()
    assert post(server, body())[0] == 200


def test_api_key(serve):
    """Wrong or missing: 401; /health and the page need none."""
    server = serve(key="secret")
    assert post(server, body())[0] == 401
    assert post(server, body(), Authorization="Bearer wrong")[0] == 401
    assert post(server, body(), Authorization="Bearer secret")[0] == 200
    for path, status in {"/health": 200, "/": 200, "/metrics": 401, "/v1/models": 401}.items():
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", path)
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[1]", {}, 400),
        (b'{"messages": 5}', {}, 400),
        (b'{"messages": []}', {}, 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', {}, 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', {}, 400),
        (b'{"messages": [{"role": "nobody", "content": "a"}]}', {}, 400),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', {}, 400),
        (b'{"x": ' + b"[" * 20_000, {}, 400),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * 70_000 + b'"}]}', {}, 413),
        (body(), {"Content-Type": "text/plain"}, 415),
        (body(), {"Content-Type": None}, 415),
    ],
)
def test_rude_requests_are_refused(serve, data, headers, status):
    """A status and a sentence, never a traceback; the next request is served."""
    server = serve()
    found, told = post(server, data, **headers)
    assert (found, bool(told["error"]["message"])) == (status, True)
    assert post(server, body())[0] == 200


def test_schema_that_is_too_deep(serve):
    """3,000 levels, or a reference to itself, end nobody's process."""
    server = serve()
    deep = {"type": "object"}
    for _ in range(3000):
        deep = {"anyOf": [deep]}
    text = json.dumps({"type": "json_object", "schema": 0}).replace("0", _dumped(deep))
    data = body()[:-1] + b', "response_format": ' + text.encode() + b"}"
    assert post(serve(max_body=1 << 20), data)[0] == 400
    form = {"type": "json_object", "schema": {"$ref": "#"}}
    assert post(server, body(response_format=form))[0] in (200, 400)
    assert post(server, body())[0] == 200


def _dumped(deep):
    text, end = "", ""
    while "anyOf" in deep:
        text, end, deep = text + '{"anyOf":[', "]}" + end, deep["anyOf"][0]
    return text + '{"type":"object"}' + end


def test_other_hosts_and_methods(serve):
    """A page elsewhere that calls this machine by its own name is refused; so is what is not served."""
    server = serve(hosts=("localhost", "127.0.0.1"))
    for host, path, status in [
        ("evil.example", "/v1/models", 400),
        ("localhost", "/v1/models", 200),
        ("[::1]:8080", "/v1/models", 400),
        ("localhost:1", "/v1/models", 200),
        ("localhost.evil.example", "/v1/models", 400),
        ("", "/v1/models", 400),
        ("localhost", "/nothing", 404),
        ("localhost", "/v1/chat/completions", 405),
    ]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", path, headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


def test_metrics_tell_what_was_done(serve):
    """Prometheus' own parser reads them; tokens and accepted drafts are those of the answers."""
    from prometheus_client.parser import text_string_to_metric_families

    server = serve()
    status, told = post(server, body("abcabcabcabcabcabc", max_tokens=40))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert status == 200
    assert found["pyspec_tokens_total"] == told["usage"]["completion_tokens"] == 40
    for name in ("drafted", "verified", "accepted", "relaxed"):
        assert found[f"pyspec_{name}_tokens_total"] == told["speculation"][name]
    assert found["pyspec_sequences"] == 4
    assert "pyspec_speed_against_plain" in found


def test_failing_decode_is_its_own_requests_fault(serve, monkeypatch):
    """One answer fails with 500, and the server goes on."""
    from pyspec.engine.handle import Engine
    from pyspec.errors import NumericError

    server = serve(draft="none")
    good = post(server, body("good", max_tokens=20))[1]["choices"][0]["message"]["content"]
    accept = Engine.accept

    def poisoned(self, seq, sampler, gate):
        if self.held(0, seq) >= 600:
            raise NumericError("a logit is not finite", code=9)
        return accept(self, seq, sampler, gate)

    monkeypatch.setattr(Engine, "accept", poisoned)
    found = {}

    def one(name, text):
        found[name] = post(server, body(text, max_tokens=20))

    asked = {"good": "good", "bad": "x" * 620, "other": "good"}
    threads = [threading.Thread(target=one, args=item) for item in asked.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["bad"][0] == 500
    for name in ("good", "other"):
        assert found[name][1]["choices"][0]["message"]["content"] == good


def test_turns_of_a_chat_are_read_once(serve):
    """What a sequence holds of a conversation is not read again, other chats in between or not."""
    server = serve(draft="none")
    first, second = "a" * 200, "b" * 200
    post(server, body(first))
    post(server, body(second))
    rows = server.batch._contexts.engine.counters().rows[0]
    post(server, body(first))
    post(server, body(second))
    assert server.batch._contexts.engine.counters().rows[0] - rows < 60
