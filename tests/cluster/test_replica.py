"""A replica, and an application that nobody runs: no cluster is needed for them."""

import pytest
from starlette.testclient import TestClient

pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)

from pyspec.batch.maker import Settings
from pyspec.cluster import Replica, app, build
from pyspec.errors import OptionError
from pyspec.sampling.options import Sampling

ARGUMENTS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip
"""What each replica here is made with."""


def deployment(served):
    return served._bound_deployment


def test_arguments_of_a_command_line_are_read():
    made = build({"model": "any", "replicas": "1-3", "num_cpus": "2", "draft": "none"})
    assert made is not None
    with pytest.raises(OptionError):
        build({"model": "any", "replicas": "3-1"})


@pytest.fixture
def replica(tiny_ascii, monkeypatch):
    made = Replica(str(tiny_ascii), {}, ARGUMENTS)
    with TestClient(made.__serve_build_asgi_app__(), "http://127.0.0.1") as client:
        made.client = client
        yield made
    made.__del__()
    monkeypatch.delattr(Replica, "__del__")  # it has been called


@pytest.fixture
def ended(monkeypatch):
    found = []
    monkeypatch.setattr("pyspec.cluster.os._exit", found.append)
    return found


def test_a_replica_without_its_engine_ends(replica, ended):
    assert replica.client.get("/health").json()["status"] == "ok"
    replica.check_health()
    assert ended == []
    replica.client.portal.call(replica._served.state.fleet.default.stop)
    replica.check_health()
    assert ended == [1]


def test_a_replica_whose_engine_hangs_ends(replica, ended):
    assert replica.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).is_success
    service = replica._served.state.fleet.default
    service.beaten = -1e9
    replica.check_health()
    assert ended == []  # it is idle
    service._open[-1] = None, None
    replica.check_health()
    del service._open[-1]
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
    """As long as `pyspec serve` drains, or as was asked; a replica's health is asked for often."""
    for options, seconds in ({}, 30), ({"drain": 300}, 300):
        served = app("m", **options)
        config = deployment(served)._deployment_config
        assert config.graceful_shutdown_timeout_s == seconds
        assert config.health_check_period_s == 5
