"""Builds of llama-cpp-python: which cards this machine has, found without anybody's library, and how to get what uses them."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from pathlib import Path

from pyspec._version import LLAMA_CPP_VERSIONS

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
"""llama-cpp-python's own index of wheels: a page for each of cpu, cu121 to cu125 and metal, not each with every version."""

FLAGS = {
    "NVIDIA": "-DGGML_CUDA=on",
    "AMD": "-DGGML_HIP=on",
    "Intel": "-DGGML_VULKAN=on",
    "Apple": "-DGGML_METAL=on",
    "RPC": "-DGGML_RPC=on",
}
"""What llama.cpp is built with for whose devices; Vulkan serves those of all three makers of cards."""

_PAGES = {"NVIDIA": "cu124", "Apple": "metal"}
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_OTHER_BUS = re.compile(r"[0-9a-f]{4}:(?!00:)[0-9a-f]{2}:")
# integrated graphics of Intel's lie on the first bus; a card that is not there is one


def reinstall(device: str, system: str = sys.platform) -> str:
    """The command that replaces llama-cpp-python by a build for these devices."""
    if system == "win32":
        return f'$env:CMAKE_ARGS="{FLAGS[device]}"; {anew()}'
    return f'CMAKE_ARGS="{FLAGS[device]}" {anew()}'


def anew() -> str:
    """The command that installs llama-cpp-python once more.

    Pip keeps built wheels by name and version alone, so that it would take the one of the processor again.
    """
    return f"pip install --force-reinstall --no-cache-dir --no-deps {pinned()}"


def pinned() -> str:
    """llama-cpp-python in the version that this pyspec takes, as pip has it."""
    return f"llama-cpp-python=={LLAMA_CPP_VERSIONS[-1]}"


def advice(maker: str, system: str = sys.platform) -> str:
    """How to have the cards of this maker used: what to do, each with its command in a line of its own."""
    lines = ["To build one that can:", reinstall(maker, system)]
    if page := _PAGES.get(maker):
        wheel = f"{anew()} --only-binary :all: --index-url {WHEELS}/{page}"
        lines += ["Or, without a compiler, if that index has a wheel for this system:", wheel]
    return "\n".join(lines)


def cards(
    root: Path = Path("/"), system: str = sys.platform, machine: str = platform.machine()
) -> list[str]:
    """Makers of the cards that this machine has for sure, the likeliest to be fast first.

    root: where /dev, /proc and /sys are.
    """
    if system == "darwin":
        return ["Apple"] if machine == "arm64" else []
    if system == "win32":
        return ["NVIDIA"] if shutil.which("nvidia-smi") else []
    found = {_maker(device) for device in (root / "sys/class/drm").glob("card*/device")}
    if (root / "proc/driver/nvidia").is_dir() or (root / "dev/nvidia0").exists():
        found.add("NVIDIA")
    if (root / "dev/kfd").exists():
        found.add("AMD")
    return [maker for maker in _VENDORS.values() if maker in found]


def _maker(device: Path) -> str:
    """Who made a display device of PCI; "" where that is unknown, or it may be part of the processor."""
    try:
        maker = _VENDORS.get((device / "vendor").read_text(encoding="ascii").strip(), "")
        own = maker != "Intel" or _OTHER_BUS.match(device.resolve().name)
    except (OSError, ValueError):
        return ""
    return maker if own else ""
