"""Devices: what is asked for and is not there is one sentence; machines' own tables are read right."""

from __future__ import annotations

import signal
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pyspec.errors import OptionError
from pyspec.store import devices as module
from pyspec.store.check import _outcome
from pyspec.store.devices import (
    Device,
    add_rpc_servers,
    layer_devices,
    parse_devices,
    require_devices,
    rough_layers,
)
from pyspec.store.header import read_header
from pyspec.store.machine import count_cores, machine_memory


def device(name: str, kind: str) -> Device:
    """One with 8 GB."""
    return Device(name, "a card", kind, 8 << 30, 8 << 30, 0)


def test_a_full_device_is_tried_with_no_layer(tiny_target: Path) -> None:
    """One that would have to make room for a single layer would fail, and with it the trial of a good file."""
    header = read_header(tiny_target)
    full = replace(device("CUDA0", "GPU"), free=1 << 20)
    assert rough_layers(header, [full]) == 0
    assert rough_layers(header, [full, replace(full, free=4 << 30)]) == 3


def test_lists_of_names() -> None:
    """As on the command line, or as a list."""
    assert parse_devices("CUDA0, CUDA1") == parse_devices(["CUDA0", "CUDA1"]) == ("CUDA0", "CUDA1")
    assert parse_devices(None) == parse_devices("") == ()


def test_layers_without_a_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install; an accelerator takes no layers."""
    monkeypatch.setattr(
        module, "devices", lambda: [device("CPU", "CPU"), device("BLAS", "accelerator")]
    )
    with pytest.raises(OptionError, match="DGGML_CUDA=on"):
        require_devices()


def test_an_unknown_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that there are."""
    monkeypatch.setattr(module, "devices", lambda: [device("CUDA0", "GPU")])
    assert [each.name for each in layer_devices(["cuda0"])] == ["CUDA0"]
    with pytest.raises(OptionError, match=r"no device CUDA1.*CUDA0"):
        layer_devices(["CUDA1"])


def test_order_is_llama_cpps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' machines first; an integrated card only where there is no other."""
    found = [device("CUDA0", "GPU"), device("iGPU", "integrated GPU"), device("RPC0", "RPC")]
    monkeypatch.setattr(module, "devices", lambda: found)
    assert [each.name for each in layer_devices()] == ["RPC0", "CUDA0"]
    monkeypatch.setattr(module, "devices", lambda: found[1:])
    assert [each.name for each in layer_devices()] == ["RPC0", "iGPU"]


@pytest.mark.parametrize("server", ["somewhere", "127.0.0.1:1", "host:999999", "http://host:1"])
def test_servers_that_cannot_be_reached(server: str) -> None:
    """An error, where llama.cpp would end the process."""
    with pytest.raises(OptionError):
        add_rpc_servers(server)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (0xC0000005, signal.SIGSEGV),
        (0xC000001D, signal.SIGILL),
        (3, signal.SIGABRT),
        (-6, signal.SIGABRT),
    ],
)
def test_crashes_are_known_on_windows(code: int, number: int) -> None:
    """An exit code there is what a signal is elsewhere, so that extra buffers are blamed there, too."""
    assert _outcome(code, "", b"").signal == number


def test_cores_of_windows_are_counted_once() -> None:
    """Records of cores have kind 0; caches, nodes and packages are others."""
    kinds = (0, 2, 0, 2, 3, 1)
    assert count_cores(b"".join(struct.pack("<QI20x", 1, kind) for kind in kinds)) == 2


def test_memory_is_known() -> None:
    """At least half a gigabyte, wherever tests run."""
    assert machine_memory() > 1 << 29
