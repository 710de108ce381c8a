"""RPC devices for tests: a process with a processor's memory, or less, that llama.cpp takes for a graphics card."""

import os
import socket
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import pytest

from helpers import forked
from helpers.running import interpret, start
from helpers.waiting import wait

_SERVER = Path(__file__).parents[1] / "offload" / "rpc_server.py"


class RpcDevice:
    """One server on 127.0.0.1 with `memory` bytes (0: all there are), ready when made."""

    def __init__(self, memory: int = 0, count: int = 1) -> None:
        self._port = socket.socket()  # bound as long as the server lives: nobody else gets its port
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        self._port.bind(("127.0.0.1", 0))
        port = self._port.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._process = start(
            _SERVER, port, memory, count, begin=interpret, before=_leave_connections
        )
        wait(lambda: self._process.poll() is not None or _listens(port))
        assert self._process.returncode is None, f"the RPC server did not start: {self.said}"

    @property
    def said(self) -> list[str]:
        return self._process.stdout.splitlines()

    @property
    def most_used(self) -> int:
        """The most bytes held at once, of a device with a limit."""
        used = [int(line.split()[1]) for line in self.said if line.startswith("used ")]
        return max(used, default=0)

    @property
    def refused(self) -> bool:
        return any(line.startswith("refused ") for line in self.said)

    def close(self) -> None:
        """End it; a process that still has models there ends with it."""
        self._process.close()
        self._port.close()


def _leave_connections() -> None:
    """A server that waits for a client's next word hears of its end only if no fork holds the connection too."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def everywhere(layers: int) -> RpcDevice | None:
    """Has every model of this process that asks for nothing else put so many layers on a device, the originals' too.

    That is the machine's graphics card if this build can use it, else a device of its own, which it returns.
    """
    import llama_cpp

    from pyspec.engine.target import TargetLlama
    from pyspec.machine.devices import add_rpc_servers, layer_devices

    device = None
    if layer_devices():
        forked.may_fork = False
    else:
        device = RpcDevice()
        add_rpc_servers(device.address)
    for one in (TargetLlama, llama_cpp.Llama):
        one.__init__ = _placed(one.__init__, layers)
    return device


def _placed(init: Callable[..., None], layers: int) -> Callable[..., None]:
    @wraps(init)
    def placed(self: object, *args: object, **kwargs: object) -> None:
        if not kwargs.get("n_gpu_layers"):
            kwargs["n_gpu_layers"] = layers
        init(self, *args, **kwargs)

    return placed


STREAMS = "drafts of `auto` give way to streams on processors alone, where a decode takes rows one after another"
"""Why the drafts of a batch differ on a device."""

LAYERS = int(os.environ.get("PYSPEC_TEST_OFFLOAD", "0"))
"""Layers that all tests put on a device, 0 for none; -1 for all."""


def for_processors(reason: str) -> pytest.MarkDecorator:
    """Marks what holds only where layers lie with the processor."""
    return pytest.mark.skipif(LAYERS != 0, reason=reason)
