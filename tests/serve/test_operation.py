"""What those who run a server see: its end, its health, its log."""

import asyncio
import contextlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers.asking import LEAST, ask, begun, body, post, raw
from helpers.waiting import DEADLINE_S, wait

from pyspec.cli.serve import ServerOptions
from pyspec.serve.access import as_text


def health(server):
    """The status and the body of a health check; one that is not fine says when to ask again."""
    with begun(server, "/health") as response:
        found = response.status, json.loads(response.read())["status"]
    assert (response.getheader("retry-after") == "1") is (response.status == 503)
    return found


def in_loop(server, made):
    return asyncio.run_coroutine_threadsafe(made, server.app.state.fleet.default._loop)


def drain(server, seconds):
    return in_loop(server, server.app.state.fleet.drain(seconds))


def streamed(server, **options):
    return begun(server, "/v1/chat/completions", body(stream=True, **options))


@pytest.fixture
def held(serve, monkeypatch):
    """A server whose engine hangs before its first round, from `server.hangs` on until `free` is set; and what lets time pass."""
    server, free = serve(), threading.Event()
    service, real = server.app.state.fleet.default, server.batch.stream
    server.hangs = threading.Event()

    def stream(after):
        server.hangs.set()
        assert free.wait(DEADLINE_S)
        return real(after)

    monkeypatch.setattr(server.batch, "stream", stream)

    def passes(seconds):
        service.beaten -= seconds

    yield server, free, passes
    free.set()


def test_an_engine_that_hangs_is_told_of(held):
    """One that is idle does not; and requests that come behind others bring no round to its end."""
    server, free, passes = held
    passes(1e6)
    assert health(server) == (200, "ok")
    with raw(server, body()), contextlib.ExitStack() as behind:
        wait(lambda: server.batch.load == (0, 1))
        passes(590.0)
        assert health(server) == (200, "ok")
        behind.enter_context(raw(server, body()))
        wait(lambda: server.batch.load == (0, 2))
        passes(11.0)
        assert health(server) == (503, "stuck")
        free.set()
        server.wait_idle()
        wait(lambda: health(server) == (200, "ok"))


@pytest.mark.parametrize(("path", "word"), [
    ("/v1/chat/completions", "Cancelled"), ("/v1/completions", "Cancelled"),
    ("/v1/responses", "response.failed"), ("/v1/messages", "overloaded_error"),
])  # fmt: skip
def test_a_drain_ends_the_streams_of_an_engine_that_hangs(held, monkeypatch, path, word):
    """As each interface tells of an answer that failed."""
    monkeypatch.setattr("pyspec.serve.service._CUT_S", 0.0)
    server, *_ = held
    with begun(server, path, json.dumps({**LEAST[path], "stream": True})) as response:
        wait(lambda: server.batch.load == (0, 1))
        drain(server, 0.0).result(DEADLINE_S)
        said = response.read().decode()
    assert "response.created" not in said
    assert '"role"' not in said
    last = said.rstrip().split("\n\n")[-1]
    assert word in last
    assert "was not finished" in last


def test_an_answer_that_is_not_streamed_ends_with_the_drain(held, monkeypatch):
    """With a status after which its client may ask another server."""
    monkeypatch.setattr("pyspec.serve.service._CUT_S", 0.0)
    server, *_ = held
    with ThreadPoolExecutor(1) as others:
        other = others.submit(post, server, body())
        wait(lambda: server.batch.load == (0, 1))
        drain(server, 0.0).result(DEADLINE_S)
        status, told = other.result(DEADLINE_S)
    assert (status, told["error"]["code"]) == (503, "Cancelled")


def test_a_stop_does_not_wait_for_an_engine_that_hangs(held, monkeypatch, caplog):
    monkeypatch.setattr("pyspec.serve.service._STOP_S", 0.0)
    server, free, _ = held
    fleet = server.app.state.fleet
    with raw(server, body()):
        assert server.hangs.wait(DEADLINE_S)  # a thread that has not begun would end at once
        in_loop(server, fleet.stop()).result(DEADLINE_S)
        assert fleet.hung == [fleet.default]
        assert "the engine of tiny did not stop" in caplog.text
    monkeypatch.undo()
    free.set()
    in_loop(server, fleet.stop()).result(DEADLINE_S)
    assert fleet.hung == []


def test_a_server_that_ends_takes_nothing_more(serve):
    """Nobody would answer."""
    server = serve()
    in_loop(server, server.app.state.fleet.stop()).result(DEADLINE_S)
    status, told = post(server, body())
    assert (status, told["error"]["code"]) == (503, "shutting_down")


def test_what_an_engine_that_hangs_uses_is_not_freed(monkeypatch):
    """The process ends with a failure; what other models have to write is written first."""
    from pyspec.serve.fleet import leave_hung

    ends = []
    monkeypatch.setattr("os._exit", ends.append)
    first = SimpleNamespace(batch=SimpleNamespace(close=lambda: ends.append("closed")))
    for hung in ([], [first], [object()]):
        leave_hung(SimpleNamespace(hung=hung, default=first))
        ends.append(None)
    assert ends == [None, 1, None, "closed", 1, None]


def test_each_round_shows_that_an_engine_works(serve, monkeypatch):
    """A long answer takes longer than any round of it."""
    server = serve(draft="none")
    service, beats = server.app.state.fleet.default, set()
    real = service.batch.stream

    def stream(after):
        return real(lambda: (after(), beats.add(service.beaten)))

    monkeypatch.setattr(service.batch, "stream", stream)
    post(server, body(max_tokens=8, logit_bias={"2": -100}))
    wait(lambda: len(beats) >= 8)


def test_an_engine_that_ended_is_told_of(serve):
    server = serve()
    service = server.app.state.fleet.default
    service._stopping.set()
    service._wake.set()
    wait(lambda: not service.alive)
    assert health(server) == (503, "failed")


NEVER_ENDS = {"logit_bias": {"2": -100}}


def test_what_runs_may_end(serve):
    server = serve(n_ctx=4096, draft="none")
    assert health(server) == (200, "ok")
    with streamed(server, max_tokens=300, **NEVER_ENDS) as response:
        ended = drain(server, DEADLINE_S)
        wait(lambda: server.app.state.fleet.draining)
        with begun(server, "/v1/chat/completions", body()) as refused:
            assert (refused.status, refused.getheader("retry-after")) == (503, "1")
            assert json.loads(refused.read())["error"]["code"] == "shutting_down"
        _, told = post(server, b'{"messages": []}', "/v1/messages")
        assert told["error"]["type"] == "overloaded_error"
        assert health(server) == (503, "draining")
        *_, last, done = response.read().decode().rstrip().split("\n\n")
        assert ('"finish_reason":"length"' in last, done) == (True, "data: [DONE]")
    ended.result(DEADLINE_S)
    assert server.batch.load == (0, 0)


@pytest.mark.parametrize(("path", "asked", "end"), [
    ("/v1/chat/completions", {"stream_options": {"include_usage": True}}, '"finish_reason":"length"'),
    ("/v1/responses", {}, '"incomplete_details":{"reason":"max_output_tokens"}'),
    ("/v1/messages", {}, '"stop_reason":"max_tokens"'),
])  # fmt: skip
def test_what_takes_longer_is_cut_and_says_so(serve, rounds, path, asked, end):
    server = serve(n_ctx=4096, draft="none")
    service = server.app.state.fleet.default
    asked |= {**LEAST[path], "max_tokens": 4000, **NEVER_ENDS, "stream": True}
    rounds.allow(8)
    with begun(server, path, json.dumps(asked)) as response:
        rounds.wait_taken()
        ended = drain(server, 0.0)
        wait(lambda: all(job.cancelled for job, _ in service._open.values()))
        rounds.allow(2)  # the one that it may be in, and one without answers
        ended.result(DEADLINE_S)
        said = response.read().decode()
    assert end in said
    assert 0 < int(re.findall(r'"(?:completion|output)_tokens":(\d+)', said)[-1]) < 10


def test_a_line_of_each_request(serve):
    lines = []
    server = serve(log=lines.append)
    post(server, body("a secret", max_tokens=5))
    ask(server, "/v1/messages", 400)
    ask(server, "/v1/nothing", 404)
    health(server)
    with streamed(server, max_tokens=6) as response:
        response.read()
    wait(lambda: len(lines) == 4)
    first, second, _, fourth = lines
    assert (first["status"], first["completion_tokens"]) == (200, 5)
    assert first["finish_reasons"] == ["length"]
    assert first["ms"] >= first["first_token_ms"] > 0
    assert (second["status"], "id" in second) == (400, False)
    assert (fourth["stream"], fourth["completion_tokens"]) == (True, 6)
    words = "\n".join(map(as_text, lines))
    at = r"\d\d:\d\d:\d\d POST"
    chat = rf"^{at} /v1/chat/completions 200, tiny, \d+ tokens read, 5 made, \d+\.\d\d s$"
    assert re.search(chat, words, re.MULTILINE)
    assert re.search(rf"^{at} /v1/nothing 404, \d+\.\d\d s$", words, re.MULTILINE)
    assert "secret" not in f"{words}{lines}"


@pytest.mark.parametrize(("options", "terminal", "told"), [
    ({}, True, True), ({"quiet": True}, True, False), ({}, False, False),
    ({"quiet": True, "log_json": True}, True, True),
])  # fmt: skip
def test_a_terminal_gets_lines_unless_quiet(monkeypatch, options, terminal, told):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    serving = ServerOptions(stall=7.0, **options).serving("x")
    assert (serving.log is not None, serving.stall) == (told, 7.0)
