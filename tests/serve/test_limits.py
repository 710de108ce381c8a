"""Requests that ask for too much, or for what cannot be: refused with a sentence, and the others go on."""

import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from helpers import scripted
from helpers.asking import ask, begun, body, first_text, post, raw, text_of
from helpers.waiting import DEADLINE_S, wait

from pyspec.serve.access import as_text
from pyspec.serve.service import Service


def test_answers_are_counted_before_anything_is_made_of_them(serve, monkeypatch):
    """200,000 prompts took 3 GB to be refused; asked again later, they are no fewer."""
    from pyspec.requests import bodies

    server = serve(max_body=1 << 20)
    monkeypatch.setattr(bodies, "records_of", None)
    told = ask(server, "/v1/completions", 400, prompt=["a"] * 100_000, n=16)
    assert "1600000 answers" in told["error"]["message"]


def test_a_grammar_that_never_ends_keeps_nobody_waiting(serve):
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
        assert status == 200 or "grammar" in told["error"]["message"]
    assert server.batch.load[0] <= 1
    _, told = post(server, body(grammar='root ::= "ab"'))
    assert text_of(told) == "ab"
    stream.close()
    server.wait_idle()


def test_a_dead_end_is_no_reason_to_read_others_anew(serve, rounds):
    """A grammar that allows nothing more ends its answer alone, which says why: no other is put aside and read again."""
    server = serve(draft="none", n_ctx=4096, parallel=2)
    stream = raw(server, body(stream=True, max_tokens=3000, logit_bias={"2": -100}))
    wait(lambda: server.batch.load[0] == 1)
    dead = body(grammar='root ::= "a" [^\\U00000000-\\U0010FFFF]')
    with ThreadPoolExecutor(1) as others:
        other = others.submit(post, server, dead)
        wait(lambda: sum(server.batch.load) == 2)
        rounds.allow(200)
        status, told = other.result()
    assert (status, "grammar" in told["error"]["message"]) == (400, True)
    (answer,) = server.batch._scheduler.active.values()
    assert not answer.alone
    stream.close()


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": scripted.DIGIT}}]


@contextmanager
def together(server, data, n):
    with ThreadPoolExecutor(n) as pool:
        asked = [pool.submit(post, server, data) for _ in range(n)]
        yield
    assert [each.result()[0] for each in asked] == [200] * n


def test_a_burst_of_agents_waits_in_the_queue(server, monkeypatch):
    """All that it holds are prepared in their turn, whatever tools they bring; more get 429."""
    service, free = server.app.state.fleet.default, threading.Event()
    checked = Service._answers
    patched = lambda *given: free.wait(DEADLINE_S) and checked(*given)  # noqa: E731
    monkeypatch.setattr(Service, "_answers", patched)
    most = 64 + 4
    with together(server, body(tools=TOOLS, max_tokens=1), most):
        wait(lambda: service._preparing == most)
        assert post(server, body())[0] == 429
        free.set()


def test_queue_is_bounded(serve, rounds):
    server = serve(draft="none", parallel=1, queue=1)
    held = [raw(server, body(stream=True)) for _ in range(2)]
    wait(lambda: server.batch.load == (1, 1))
    status, told = post(server, body())
    assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
    rounds.allow(math.inf)
    server.wait_idle()
    assert post(server, body())[0] == 200
    for connection in held:
        connection.close()


def test_a_key_of_any_letters(serve):
    server = serve(key="clé à")
    assert post(server, body(), Authorization="Bearer clé à".encode())[0] == 200
    assert post(server, body(), **{"x-api-key": "clé à".encode()})[0] == 200


def test_api_key(serve):
    server = serve(key="secret")
    assert post(server, body())[0] == 401
    assert post(server, body(), Authorization="Bearer wrong")[0] == 401
    for told in ("Bearer secret", "bearer secret", "BEARER  secret"):
        assert post(server, body(), Authorization=told)[0] == 200
    proxys = {"Authorization": "Basic dXNlcjpwYXNz"}  # its own, beside the client's
    assert post(server, body(), **proxys)[0] == 401
    assert post(server, body(), **proxys, **{"x-api-key": "secret"})[0] == 200
    assert post(server, body(), **{"x-api-key": "secre"})[0] == 401
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert ask(server, path, 401)["error"]["type"] == "authentication_error"
    for path, status in {"/health": 200, "/": 200, "/metrics": 401, "/v1/models": 401}.items():
        with begun(server, path) as response:
            assert response.status == status


SAY = body("say")
DEEP = b'{"anyOf":[' * 3000 + b"{}" + b"]}" * 3000


@pytest.mark.parametrize(("data", "headers", "status"), [
    *((data, {}, 400) for data in (
        b"", SAY[:20], b"[1]", b'{"messages": 5}', b'{"messages": []}', SAY.replace(b"say", b"\xff"),
        SAY.replace(b"say", rb"\ud83d"), SAY.replace(b"user", b"nobody"), SAY.replace(b'"say"', b'[{"type": "image_url"}]'),
        SAY.replace(b"8", b"NaN"), SAY.replace(b"8", b"8,"), SAY.replace(b"8", b'8, "json_schema": ' + DEEP),
        b'{"x": ' + b"[" * 20_000, b'{"json_schema": {"a": ' + b"[" * 40_000,
    )),
    (body("x" * 70_000), {}, 413),
    (body(), {"Content-Type": "text/plain"}, 415),
    *((body(), {"Content-Type": None, sent_by_pages: "null"}, 415) for sent_by_pages in ("Origin",
     "Referer", "Sec-Fetch-Site", "Sec-Fetch-Mode")),
])  # fmt: skip
def test_rude_requests_are_refused(server, data, headers, status):
    found, told = post(server, data, **headers)
    assert (found, bool(told["error"]["message"])) == (status, True)
    assert post(server, body())[0] == 200


def metrics(server):
    from prometheus_client.parser import text_string_to_metric_families

    with begun(server, "/metrics") as response:
        text = response.read().decode()
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    return {" ".join([each.name, *each.labels.values()]): each.value for each in samples}


def test_metrics_tell_what_was_done(serve):
    """As usage counts it."""
    server = serve()
    asked = {"max_tokens": 40}, {"n": 3}, {"max_tokens": 0}
    told = [post(server, body("abc" * 6, **how))[1] for how in asked]
    blocks = [b for t in told for b in t["speculation"].get("choices", [t["speculation"]])]
    used, found = [each["usage"] for each in told], metrics(server)
    assert found["pyspec_tokens_total"] == sum(each["completion_tokens"] for each in used) == 64
    assert found["pyspec_prompt_tokens_total"] == sum(each["prompt_tokens"] for each in used)
    for name in ("drafted", "verified", "accepted", "relaxed"):
        assert found[f"pyspec_{name}_tokens_total"] == sum(block[name] for block in blocks)
    assert found["pyspec_answers_total length"] == found["pyspec_answer_seconds_count"] == 5
    assert (found["pyspec_first_token_seconds_count"], found["pyspec_sequences"]) == (4, 4)
    assert "pyspec_times_plain" in found


def test_answers_that_nobody_waits_for_are_counted_and_told_as_cancelled(serve, rounds):
    """They took the machine's time, cancelled while they ran or before."""
    lines = []
    server = serve(draft="none", n_ctx=4096, parallel=1, log=lines.append)
    rounds.allow(20)
    left = [raw(server, body(stream=True, max_tokens=4000, logit_bias={"2": -100}))]
    first_text(left[0])
    left.append(raw(server, body(stream=True)))
    wait(lambda: server.batch.load == (1, 1))
    for connection in left:
        connection.close()
    wait(lambda: not server.tasks)
    rounds.allow(math.inf)
    wait(lambda: metrics(server).get("pyspec_answers_total cancelled") == 2)
    assert metrics(server)["pyspec_tokens_total"] > 0
    assert [as_text(line)[-13:] for line in lines] == [" s, cancelled"] * 2


def test_failing_decode_is_its_own_requests_fault(serve, monkeypatch, caplog):
    from pyspec.engine.handle import Engine
    from pyspec.errors import NumericError

    server = serve(draft="none")
    good = text_of(post(server, body("good", max_tokens=20))[1])
    accept = Engine.accept

    def poisoned(self, seq, sampler, gate):
        if self.held(0, seq) >= 600:
            raise NumericError("a logit is not finite", code=9)
        return accept(self, seq, sampler, gate)

    monkeypatch.setattr(Engine, "accept", poisoned)
    asked = [body(text, max_tokens=20) for text in ("x" * 620, "good", "good")]
    with ThreadPoolExecutor(3) as pool:
        (status, told), *others = pool.map(partial(post, server), asked)
    assert (status, "a logit is not finite" in told["error"]["message"]) == (500, True)
    assert "failed: a logit is not finite" in caplog.text
    assert [text_of(each) for _, each in others] == [good] * 2
    assert metrics(server)["pyspec_answers_total failed"] == 1


def test_other_hosts_and_methods(serve):
    """A page elsewhere that calls this machine by its own name is refused; so is what is not served."""
    server = serve(hosts=("localhost", "::1"))
    own = ["[::1]:8080", "localhost", "localhost:1", "LOCALHOST.", "localhost.:1"]
    others = ["::1", "evil.example", "evil.example.", "localhost.evil.example", ""]
    models = [("/v1/models", host) for host in (*own, *others)]
    statuses = [200] * len(own) + [400] * len(others) + [404, 405]
    more = [("/nothing", "localhost"), ("/v1/chat/completions", "localhost")]
    for (path, host), status in zip(models + more, statuses, strict=True):
        with begun(server, path, Host=host) as response:
            assert response.status == status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/"])
def test_a_body_of_two_lengths_is_refused_and_its_connection_closed(serve, path):
    """A proxy that believes the other length would take what follows for another client's request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    twice = f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{head}\r\n{{}}"
    with socket.create_connection(("127.0.0.1", serve().port), timeout=DEADLINE_S) as connection:
        connection.sendall(twice.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
