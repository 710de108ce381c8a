"""A replica, and an application that nobody runs: no cluster is needed for them."""

from __future__ import annotations

import asyncio
import json
from types import MappingProxyType

import pytest
from helpers.asking import POSTED
from helpers.waiting import DEADLINE_S, wait

pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)

from pyspec.batch.maker import Settings
from pyspec.cluster.serve import Replica, _events, app, build
from pyspec.errors import OptionError
from pyspec.sampling.chain import Sampling
from pyspec.serve.paths import interface_at
from pyspec.serve.pulse import Pulse

ARGUMENTS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip
"""What each replica here is made with."""


def deployment(served):
    """The replicas' deployment of an application."""
    return served._bound_deployment.init_args[0]._bound_deployment


def test_arguments_of_a_command_line_are_read():
    """Numbers are numbers; fewest and most are told apart."""
    made = build({"model": "any", "replicas": "1-3", "num_cpus": "2", "draft": "none"})
    assert made is not None
    with pytest.raises(OptionError):
        build({"model": "any", "replicas": "3-1"})


@pytest.fixture
def living(tiny_ascii, monkeypatch):
    """Runs what uses a replica, `use(replica)`, and frees the replica behind it."""

    def run(use, server=MappingProxyType({}), **arguments):
        async def life():
            replica = Replica(str(tiny_ascii), server, {**ARGUMENTS, **arguments})
            try:
                return await use(replica)
            finally:
                await replica.__del__()
                monkeypatch.delattr(Replica, "__del__")  # Ray awaits it, Python does not

        return asyncio.run(life())

    return run


@pytest.fixture
def ended(monkeypatch):
    """The statuses with which a replica ended its process."""
    found = []
    monkeypatch.setattr("pyspec.cluster.serve.os._exit", found.append)
    return found


def request(**body):
    """The arguments of `Replica.answer` for a completion."""
    return dict(POSTED), json.dumps({"prompt": "a", **body}).encode()


LONG = {"stream": True, "logit_bias": {"2": -100}}


def test_a_stream_that_waits_shows_so_through_the_door(living):
    """What a replica sends meanwhile goes out at once, and the answer behind it."""

    async def use(replica):
        held, waiting = (replica.answer(*request(**LONG, max_tokens=n)) for n in (4000, 4))
        for pieces in (held, waiting):
            await anext(pieces)
        await anext(held)
        passed = _events(await anext(waiting), waiting, interface_at("/v1/completions"), None)
        said = [await anext(passed) for _ in range(3)]
        await held.aclose()
        return said + [piece async for piece in passed]

    said = living(use, {"ping": 0.05}, parallel=1)
    assert said[:3] == [b":\n\n"] * 3
    assert said[-1] == b"data: [DONE]\n\n"


def test_an_answer_that_nobody_reads_on_leaves_nothing(living):
    """What produces it ends, however much of it waits to be taken."""

    async def use(replica):
        pieces = replica.answer(*request(**LONG, max_tokens=200))
        await anext(pieces)
        await asyncio.to_thread(wait, lambda: replica._batch.load == (0, 0))
        await pieces.aclose()
        _, left = await asyncio.wait(
            asyncio.all_tasks() - {asyncio.current_task()}, timeout=DEADLINE_S
        )
        return left

    assert living(use) == set()


def test_a_replica_without_its_engine_ends(living, ended):
    """At Ray's next check, and Ray makes another; before the first request, and while it answers, it is well."""
    scope = {**POSTED, "method": "GET", "path": "/health", "raw_path": b"/health"}

    async def use(replica):
        replica.check_health()
        answer = [piece async for piece in replica.answer(scope, b"")]
        replica.check_health()
        assert ended == []
        await replica._app.state.fleet.default.stop()
        replica.check_health()
        return answer

    (status, _), *body = living(use)
    assert ended == [1]
    assert (status, json.loads(b"".join(body))["status"]) == (200, "ok")


def test_a_replica_whose_engine_hangs_ends(living, ended):
    """At Ray's next check, as one without its engine."""

    async def use(replica):
        assert [piece async for piece in replica.answer(*request(max_tokens=1))]
        service = replica._app.state.fleet.default
        service.pulse = Pulse(0.0, iter(range(9)).__next__)
        replica.check_health()
        assert ended == []  # it is idle
        service._open[-1] = None, None
        replica.check_health()
        del service._open[-1]

    living(use)
    assert ended == [1]


def test_more_answers_than_a_replica_has_at_once_make_more_replicas():
    """Ray counts those that run and those that wait in it; a fixed number does not change."""
    scaled = deployment(app("m", replicas=(1, 3), parallel=5, queue=7))
    told = scaled._deployment_config.autoscaling_config
    assert (told.min_replicas, told.max_replicas) == (1, 3)
    assert told.get_target_ongoing_requests() == 5
    assert scaled._deployment_config.max_ongoing_requests == 12
    fixed = deployment(app("m", replicas=2))
    assert fixed._deployment_config.autoscaling_config is None
    assert fixed._deployment_config.num_replicas == 2


def test_a_new_version_waits_for_the_answers_of_the_old_one():
    """As long as `pyspec serve` drains, or as was asked; a replica's health is asked for often.

    The door, through which they go, outlives the replicas behind it: it tells of those that were cut.
    """
    for options, seconds in ({}, 30), ({"drain": 300}, 300):
        served = app("m", **options)
        config = deployment(served)._deployment_config
        assert config.graceful_shutdown_timeout_s == seconds
        assert config.health_check_period_s == 5
        assert served._bound_deployment._deployment_config.graceful_shutdown_timeout_s > seconds
