"""Devices: what is asked for and is not there is one sentence; machines' own tables are read right."""

import re
from pathlib import Path

import llama_cpp
import pytest
from click.testing import CliRunner

from pyspec.cli import opening
from pyspec.cli.main import info
from pyspec.cli.options import ModelOptions
from pyspec.errors import OptionError
from pyspec.machine import devices as module
from pyspec.machine import parse_devices
from pyspec.machine.devices import (
    Device,
    add_rpc_servers,
    cards,
    lacking_devices,
    layer_devices,
)


def device(name, kind):
    return Device(name, "a card", kind, 8 << 30, 8 << 30, 0)


@pytest.fixture
def has(monkeypatch):
    def set_(*devices, cards=()):
        found = [device(name, kind) for name, kind in devices]
        monkeypatch.setattr(module, "devices", lambda: found)
        monkeypatch.setattr(module, "cards", lambda: list(cards))

    return set_


CPU = "CPU", "CPU"


def test_lists_of_names():
    assert parse_devices("CUDA0, CUDA1") == parse_devices(["CUDA0", "CUDA1"]) == ("CUDA0", "CUDA1")
    assert parse_devices(None) == parse_devices("") == ()


def built_anew(hint):
    """The command takes no wheel that pip kept of another build, no other version, and no other package along."""
    words = f"--force-reinstall --no-cache-dir --no-deps llama-cpp-python=={llama_cpp.__version__}"
    assert words in hint


def test_a_build_without_rpc_is_built_anew(monkeypatch):
    monkeypatch.setattr(module, "_ggml", lambda *_: lambda *_: None)
    with pytest.raises(OptionError, match="DGGML_RPC=on") as refused:
        module._add_server("127.0.0.1:1")
    built_anew(str(refused.value))


def test_the_page_has_the_same_version():
    page = (Path(__file__).parents[2] / "DEVICES.md").read_text(encoding="utf-8")
    assert set(re.findall(r"llama-cpp-python==([\d.]+\d)", page)) == {llama_cpp.__version__}


def test_a_card_that_the_build_cannot_use_is_said_once(has):
    """For this machine and build; where the build has a device for it, never."""
    has(("CUDA0", "GPU"), cards=["NVIDIA"])
    assert module.missed_card_once() == ""
    has(CPU, cards=["NVIDIA"])
    said = module.missed_card_once()
    assert "NVIDIA" in said
    built_anew(said)
    assert module.missed_card_once() == ""
    assert module.missed_card() == said


def test_commands_say_it(monkeypatch, tiny_target, capsys):
    monkeypatch.setattr(opening, "missed_card_once", lambda: "a card is here")
    for layers, says in ((0, ""), ("auto", "a card is here\n")):
        opening.find(ModelOptions(str(tiny_target), "none", n_gpu_layers=layers))
        assert capsys.readouterr() == ("", says)


def test_info_says_it_each_time(monkeypatch):
    monkeypatch.setattr(module, "layer_devices", list)
    monkeypatch.setattr(module, "missed_card", lambda: "a card is here")
    for _ in range(2):
        result = CliRunner().invoke(info)
        assert "on the CPU\n" in result.output
        assert result.stderr == "a card is here\n"


def test_layers_without_a_device_are_refused_with_the_builds_for_each(has):
    has(CPU, ("BLAS", "accelerator"))
    _, *commands = lacking_devices()
    built_anew(commands[0])
    wanted = [f"{module.reinstall(maker)}  # {maker}" for maker in ("NVIDIA", "AMD", "Intel")]
    assert commands == wanted
    has(CPU, cards=["AMD"])
    said, *commands = lacking_devices()
    assert said.endswith("(DEVICES.md has wheels):")
    assert commands == [f"{module.reinstall('AMD')}  # AMD"]


@pytest.mark.parametrize(("files", "system", "found"), [
    ((), ("linux",), []), (("proc/driver/nvidia",), ("linux",), ["NVIDIA"]),
    (("dev/kfd", "dev/nvidia0"), ("linux",), ["NVIDIA", "AMD"]),
    ((), ("darwin", "arm64"), ["Apple"]), ((), ("darwin", "x86_64"), []),  # Apple's own processors have Metal
])  # fmt: skip
def test_cards_are_known_by_their_drivers_files(tmp_path, files, system, found):
    for name in files:
        (tmp_path / name).mkdir(parents=True)
    assert cards(tmp_path, *system) == found


def test_an_unknown_device_is_named(has):
    has(("CUDA0", "GPU"))
    assert [each.name for each in layer_devices(["cuda0"])] == ["CUDA0"]
    with pytest.raises(OptionError, match=r"no device CUDA1.*CUDA0"):
        layer_devices(["CUDA1"])


def test_order_is_llama_cpps(has):
    """Others' machines first; an integrated card only where there is no other."""
    found = [("CUDA0", "GPU"), ("iGPU", "integrated GPU"), ("RPC0", "RPC")]
    for missing, names in ((0, ["RPC0", "CUDA0"]), (1, ["RPC0", "iGPU"])):
        has(*found[missing:])
        assert [each.name for each in layer_devices()] == names


@pytest.mark.parametrize("server", ["somewhere", "127.0.0.1:1", "host:999999", "http://host:1"])
def test_servers_that_cannot_be_reached(server):
    """An error, where llama.cpp would end the process."""
    with pytest.raises(OptionError):
        add_rpc_servers(server)
