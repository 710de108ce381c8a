"""What the door before replicas makes of requests and of their answers: no cluster is needed for it."""

from __future__ import annotations

import asyncio
import json

import pytest
from helpers.asking import POSTED
from helpers.waiting import DEADLINE_S

pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from starlette.requests import Request

from pyspec.cluster.serve import Ingress, _events, _refusal, conversation_key
from pyspec.serve.paths import interface_at

# -- the door ----------------------------------------------------------------------------------------------------------


class Replicas:
    """Stands for Ray's handle: each answer is what comes next, pieces, exceptions, or events that are waited for."""

    def __init__(self, *answers):
        self._answers = iter(answers)
        self.answer = self

    def options(self, **_options):
        return self

    async def remote(self, _scope, _body):
        for piece in next(self._answers):
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece


async def response_to(path, *answers):
    """What the door makes of a request, whose body comes in two pieces, and these answers."""
    received = iter([(b"{", True), (b"}", False)])

    async def receive():
        body, more = next(received)
        return {"type": "http.request", "body": body, "more_body": more}

    return await Ingress(Replicas(*answers))(Request({**POSTED, "path": path}, receive))


def door(*answers, path="/v1/completions"):
    """Status and body of what the door makes of these answers."""

    async def ask():
        response = await response_to(path, *answers)
        if response.status_code != 200:
            return response.status_code, json.loads(response.body)["error"]["message"]
        return 200, b"".join([piece async for piece in response.body_iterator])

    return asyncio.run(ask())


LOST = [RayActorError()]
FINE = [(200, [(b"content-type", b"application/json")]), b"{", b"}"]


def test_a_request_goes_to_another_replica_while_nothing_is_out():
    """Also where the status had come, but no more than a few times."""
    assert door(FINE) == door(LOST, FINE) == door(FINE[:1] + LOST, LOST, FINE) == (200, b"{}")
    status, message = door(LOST, LOST, LOST, FINE)
    assert (status, "ask again" in message) == (503, True)


def test_a_door_without_replicas_says_so():
    """A version that cannot begin has none."""
    status, message = door([DeploymentUnavailableError("replica")])
    assert (status, "no replica" in message) == (503, True)


def test_a_body_that_does_not_say_how_long_it_is_has_a_limit(monkeypatch):
    """The door reads all of it, for whom it may have to ask again."""
    monkeypatch.setattr("pyspec.cluster.serve.MAX_BODY", 1)
    assert door(FINE)[0] == 413


# -- streams -----------------------------------------------------------------------------------------------------------

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HEAD = (200, [(b"content-type", b"text/event-stream; charset=utf-8")])
PING, PINGED = b":\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
SAID = b"data: {}\n\n"


@pytest.mark.parametrize("signs", [[PING], [PING, b": on\n\n"], [PINGED], [PINGED + PING]])
def test_a_stream_that_told_nothing_goes_on_with_another_replica(signs):
    """Its reader sees signs that it goes on, and then the answer; so it is where the other one is lost, too."""
    lost = [HEAD, *signs, *LOST]
    told = b"".join(signs)
    assert door(lost, [HEAD, SAID], path=MESSAGES) == (200, told + SAID)
    assert door(lost, LOST, [HEAD, PING, SAID], path=MESSAGES) == (200, told + PING + SAID)
    assert door(lost, lost, [HEAD, SAID], path=MESSAGES) == (200, 2 * told + SAID)


@pytest.mark.parametrize(
    ("path", "first"),
    [
        (CHAT, b'data: {"choices":[]}\n\n'),
        (MESSAGES, b'event: message_start\ndata: {"type":"message_start"}\n\n'),
        (RESPONSES, b'event: response.created\ndata: {"sequence_number":0}\n\n'),
        (CHAT, PING + SAID),
        (MESSAGES, PINGED + SAID),
    ],
)
def test_a_stream_that_told_something_ends_with_its_replica(path, first):
    """Another's answer would be told from its beginning; a sign behind an event changes nothing."""
    status, body = door([HEAD, PING, first, PING, *LOST], [HEAD, b"never"], path=path)
    assert (status, body[: len(PING + first + PING)]) == (200, PING + first + PING)
    assert b"ask again" in body
    assert b"never" not in body


def test_a_stream_goes_to_so_many_replicas_and_no_more():
    lost = [HEAD, PING, *LOST]
    _, body = door(lost, lost, lost, [HEAD, b"never"], path=CHAT)
    assert body.startswith(3 * PING + b"data: ")
    assert "ask again" in _data(body)["error"]["message"]


REFUSED = b'{"error": {"message": "too many", "code": "rate_limit_exceeded"}}'


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([(429, [(b"content-type", b"application/json")]), REFUSED[:9], REFUSED[9:]], "too many"),
        ([(500, [(b"content-type", b"text/plain")]), b"no"], "ask again"),
        ([(429, []), REFUSED[:9], *LOST], "ask again"),
        ([DeploymentUnavailableError("replica")], "no replica takes"),
    ],
)
def test_what_another_replica_refuses_is_told_in_the_stream(answer, message):
    _, body = door([HEAD, PING, *LOST], answer, path=MESSAGES)
    assert body.startswith(PING + b"event: error\n")
    assert message in _data(body)["error"]["message"]


def test_a_stream_that_waits_for_another_replica_shows_that_it_goes_on(monkeypatch):
    monkeypatch.setattr("pyspec.cluster.serve._PING_S", 0.0)

    async def read():
        free = asyncio.Event()
        response = await response_to(CHAT, [HEAD, PING, *LOST], [free, HEAD, SAID])
        pieces = response.body_iterator
        waited = [await asyncio.wait_for(anext(pieces), DEADLINE_S) for _ in range(3)]
        free.set()
        return waited, [piece async for piece in pieces if piece != PING]

    assert asyncio.run(read()) == ([PING] * 3, [SAID])


def test_the_status_of_a_stream_does_not_wait_for_its_beginning():
    """Clients give up a server that sends no status before they give up a stream."""

    async def read():
        free = asyncio.Event()
        response = await asyncio.wait_for(response_to(CHAT, [HEAD, free, SAID]), DEADLINE_S)
        free.set()
        return response.status_code, [piece async for piece in response.body_iterator]

    assert asyncio.run(read()) == (200, [SAID])


def test_a_reader_who_leaves_is_asked_for_no_more(monkeypatch):
    """Nothing goes on waiting for another replica."""
    monkeypatch.setattr("pyspec.cluster.serve._PING_S", 0.0)

    async def read():
        response = await response_to(CHAT, [HEAD, PING, *LOST], [asyncio.Event()])
        pieces = response.body_iterator
        for _ in range(2):
            await asyncio.wait_for(anext(pieces), DEADLINE_S)
        await pieces.aclose()
        _, left = await asyncio.wait(
            asyncio.all_tasks() - {asyncio.current_task()}, timeout=DEADLINE_S
        )
        return left

    assert asyncio.run(read()) == set()


# -- errors in each interface's form ------------------------------------------------------------------------------------


def _cut(path, *pieces):
    """The rest of a stream behind its first piece, whose replica ends."""

    async def come():
        for piece in pieces[1:]:
            yield piece
        raise RayActorError

    async def read():
        passed = _events(pieces[0], come(), interface_at(path), None)
        return [piece async for piece in passed]

    return asyncio.run(read())[len(pieces) :]


def _data(event):
    return json.loads(event.rpartition(b"data: ")[2])


def test_each_interface_says_in_its_own_form_that_a_replica_ended():
    """Its clients raise what they raise for an error of the server."""
    (event,) = _cut(CHAT, b"data: {}\n\n")
    assert (_data(event)["error"]["type"], event[:7]) == ("server_error", b"data: {")
    (event,) = _cut(MESSAGES, b"event: message_start\ndata: {}\n\n")
    assert event.startswith(b"event: error\n")
    assert (_data(event)["type"], _data(event)["error"]["type"]) == ("error", "overloaded_error")
    said = b'event: x\ndata: {"sequence_number":%d,"delta":"\\"sequence_number\\":"}\n\n'
    (event,) = _cut(RESPONSES, said % 0, said % 1 + said % 2, said % 3)
    lines = [line for line in event.splitlines() if line.startswith(b"data: ")]
    told = [json.loads(line[6:]) for line in lines]
    assert [(e["type"], e["sequence_number"]) for e in told] == [
        ("error", 4),
        ("response.failed", 5),
    ]
    assert "ask again" in told[0]["message"]


def test_what_is_no_stream_just_ends():
    """Half a body of JSON is mended by no event."""
    with pytest.raises(RayActorError):
        door([*FINE, *LOST])


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CHAT, None),
        (RESPONSES, None),
        (MESSAGES, "error"),
        (MESSAGES + "/count_tokens", "error"),
        ("/messages/count_tokens", "error"),
        (RESPONSES + "/input_tokens", None),
        ("/props", None),
    ],
)
def test_a_refusal_is_of_its_interface(path, kind):
    response = _refusal(interface_at(path), 503, "words")
    told = json.loads(response.body)
    assert (told.get("type"), told["error"]["message"]) == (kind, "words")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


# -- conversations --------------------------------------------------------------------------------------------------


def test_a_conversation_is_known_by_its_beginning():
    """Turns that come later change nothing; what was said first, or to whom, does."""

    def key(headers=(), **body):
        return conversation_key(dict(headers), json.dumps(body).encode())

    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    later = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert key(messages=first) == key(messages=later) != key(messages=later[1:])
    assert key(system="x", messages=first) != key(messages=first)
    assert key(prompt="a" * 256 + "b") == key(prompt="a" * 256 + "c") != key(prompt="b")
    assert key(prompt=["a", "b"]) == key(prompt=["a"]) != key(prompt=["b"])
    assert key({"x-session-id": "mine"}, messages=first) == "mine"
    for odd in (b"", b"[]", b"{", b'{"messages": 3}', b"\xff", b"[" * 100_000):
        assert conversation_key({}, odd) == ""


def test_an_agents_conversation_stays_though_its_marks_move():
    """What it tells its own service changes with each request, and its mark of a cache moves on to the next turn."""

    def key(n, words="Look.", *, marked=False, listed=True):
        mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
        note = {"type": "text", "text": f"x-anthropic-billing-header: cch={n};"}
        system = [note, {"type": "text", "text": "You code.", **mark}]
        first = [{"type": "text", "text": words, **mark}] if listed else words
        later = [{"role": "assistant", "content": f"{n}"}, {"role": "user", "content": "more"}]
        body = {"system": system, "messages": [{"role": "user", "content": first}, *later[: 2 * n]]}
        return conversation_key({}, json.dumps(body).encode())

    assert key(0, marked=True) == key(1) == key(2, listed=False) != key(1, "Read.")


def test_a_codex_conversation_is_known_by_its_words():
    """Items of the Responses interface: what the developer and the user said first."""

    def key(*texts):
        roles = ("developer", "user", "user", "user")
        said = [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
            for role, text in zip(roles, texts)
        ]
        return conversation_key({}, json.dumps({"instructions": "i", "input": said}).encode())

    assert key("a", "b") == key("a", "b", "c") != key("a", "c")
    assert key("b", "b") != key("a", "b")
