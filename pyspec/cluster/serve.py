"""`pyspec serve` over several processes or machines, by Ray Serve (extra `[ray-serve]`).

Each replica has its own model and application. Requests with the same header `x-session-id` go to the same replica, whose prefix
cache has the beginning of their conversation. Placement, scaling, rolling updates, restarts and attempts are Ray's.

    from pyspec.cluster.serve import app

    served = app("smollm2-135m-instruct", replicas=(1, 4))     # serve run module:served

or `serve run pyspec.cluster.serve:build model=smollm2-135m-instruct`, or a file of Ray Serve's with its import_path and args.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from pyspec.batch.maker import Settings
from pyspec.batch.run import Batch
from pyspec.errors import OptionError
from pyspec.serve.app import make_app
from pyspec.serve import ServerSettings, served_name

log = logging.getLogger("pyspec")

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


class Replica:
    """A model with its application."""

    def __init__(self, model: str, server: dict[str, Any], arguments: dict[str, Any]) -> None:
        self._batch = Batch(model, interactive=True, **arguments)
        self._batch.prepare()
        settings = ServerSettings(**{"model": served_name(model), **server})
        self._served = make_app(self._batch, settings)

    def __serve_build_asgi_app__(self) -> Any:
        return self._served

    def check_health(self) -> None:
        """End this process if the engine's thread failed or hangs, and Ray starts a new replica.

        Ray would wait for an unhealthy replica's running requests, which never end.
        """
        fault = self._served.state.fleet.default.fault
        if fault is not None:
            log.error("the engine's thread %s, and this replica ends", fault)
            os._exit(1)

    def __del__(self) -> None:
        if self._served.state.fleet.hung:  # the engine's thread still uses the batch
            os._exit(1)
        self._batch.close()


def app(
    model: str,
    *,
    replicas: int | tuple[int, int] = 1,
    num_cpus: float | None = None,
    num_gpus: float = 0.0,
    queue: int = 64,
    drain: float = 30.0,
    server: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """An application for `ray.serve.run` or `serve run`.

    model: a file, or a name that each node resolves for itself. replicas: their number, or the fewest and the most: Ray then
    adds replicas when each has more requests than it answers at once. num_cpus, num_gpus: of each replica, which uses as many
    threads. queue: answers that may wait at a replica. drain: seconds for running answers when Ray ends a replica for a new
    version or for less load. server: fields of `ServerSettings`, such as api_key. arguments: those of `Batch`. Raises
    OptionError.
    """
    fewest, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    if not 1 <= fewest <= most:
        raise OptionError(f"replicas are {replicas}", "give a number, or the fewest and the most")
    parallel = int(arguments.setdefault("parallel", 4))
    cpus = float(arguments.get("n_threads") or 1) if num_cpus is None else num_cpus
    threads = {"n_threads": max(1, int(cpus)), "n_threads_batch": max(1, int(cpus))}
    arguments = {"settings": Settings(max_tokens=None), **threads, **arguments}
    scale = AutoscalingConfig(
        min_replicas=fewest, max_replicas=most, target_ongoing_requests=parallel
    )
    deployed = serve.deployment(
        serve.ingress()(Replica),
        name="replica",
        max_ongoing_requests=parallel + queue,
        autoscaling_config=scale if most > fewest else None,
        num_replicas=fewest if most == fewest else None,
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        ray_actor_options={"num_cpus": cpus, "num_gpus": num_gpus},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=drain,
    )
    return deployed.bind(model, {"queue": queue, **(server or {})}, arguments)


def build(args: dict[str, Any]) -> Any:
    """`app` with arguments from Ray Serve's command line or file. Numbers may be text, replicas "2" or "1-4"."""
    options: dict[str, Any] = {}
    for name, value in args.items():
        is_number = isinstance(value, str) and value.replace(".", "", 1).isdigit()
        options[name] = msgspec.json.decode(value) if is_number else value
    count = options.get("replicas")
    if isinstance(count, str):
        fewest, _, most = count.partition("-")
        options["replicas"] = (int(fewest), int(most or fewest))
    return app(**options)
