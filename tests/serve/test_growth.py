"""What a server holds does not grow with the requests that it has answered."""

import gc
import json
import sys
from collections import Counter
from itertools import pairwise
from types import ModuleType

import pytest
from helpers.asking import begun
from helpers.waiting import wait

OWN = ("pyspec", "starlette", "uvicorn", "anyio", "asyncio", "_asyncio", "prometheus_client")
"""Packages whose objects are counted."""

CHAT = "/v1/chat/completions"
TURN = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
ENDLESS = {"max_tokens": 400, "logit_bias": {"2": -100}, "stream": True}
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {}}}
KINDS = {
    "chat": (CHAT, TURN),
    "stream": (CHAT, {**TURN, "stream": True}),
    "left": (CHAT, {**TURN, **ENDLESS}),
    "tools": (CHAT, {**TURN, "tools": [{"type": "function", "function": TOOL}], "n": 2}),
    "text": ("/v1/completions", {"prompt": "a", "max_tokens": 3, "logprobs": 2, "echo": True}),
    "response": ("/v1/responses", {"input": "a", "max_output_tokens": 3}),
    "message": ("/v1/messages", TURN),
    "bad": (CHAT, {**TURN, "n": 0}),
}


@pytest.fixture
def server(serve, monkeypatch):
    """One without a memory of texts, which grows until it is full; and without the cancelled timers that asyncio keeps."""
    monkeypatch.setattr("asyncio.base_events._MIN_SCHEDULED_TIMER_HANDLES", 0)
    return serve(memory=False, cache_ram=0, log=lambda _line: None)


@pytest.fixture
def ask_all(server):
    """Asks in each way so many times, each time for another user, until nothing runs."""
    users = iter(range(1_000_000))

    def ask(kind):
        path, body = KINDS[kind]
        name = f"user {next(users)}"
        body = json.dumps({**body, "user": name, "metadata": {"user_id": name}})
        with begun(server, path, body) as response:
            assert response.status == (400 if kind == "bad" else 200)
            response.read(9 if kind == "left" else None)

    def ask_all_(rounds):
        for _ in range(rounds):
            for kind in KINDS:
                ask(kind)
        wait(lambda: not server.tasks and server.batch.load == (0, 0))
        gc.collect()

    return ask_all_


def counted(found):
    """Objects by type. Numbers are left out: one is an object of its own as soon as a counter has passed 256."""
    kept = (each for each in found if not isinstance(each, int | float))
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in kept)


def reached(*roots):
    """Objects that these hold, and what those hold, but for programs themselves."""
    programs = {id(vars(module)) for module in sys.modules.values()}
    seen, todo = {}, list(roots)
    while todo:
        each = todo.pop()
        if id(each) not in seen and id(each) not in programs:
            seen[id(each)] = each
            if not isinstance(each, type | ModuleType):
                todo += gc.get_referents(each)
    return counted(seen.values())


def held(server):
    """What a server holds; and what there is of OWN, whoever holds it."""
    own = (each for each in gc.get_objects() if str(type(each).__module__).partition(".")[0] in OWN)
    return reached(server.app, server.batch, server.server), counted(own)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_as_much_is_held_after_four_times_as_many_requests(server, ask_all, rounds):
    """What is kept for good grows each time, by an object for each request of a kind; what waits or fills up does not."""
    counts = []
    for _ in range(4):
        ask_all(rounds)
        counts.append(held(server))
    for series in zip(*counts):
        grown = [after - before for before, after in pairwise(series)]
        assert {
            kind: n for kind, n in grown[0].items() if min(g[kind] for g in grown) >= rounds
        } == {}
