"""Builds of llama-cpp-python: finds this machine's graphics cards without vendor libraries, and says which build uses them."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from pyspec._version import LLAMA_CPP_VERSIONS

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
"""llama-cpp-python's own wheel index: pages for cpu, cu121 to cu125 and metal, not all with every version."""

FLAGS = {
    "NVIDIA": "-DGGML_CUDA=on",
    "AMD": "-DGGML_HIP=on",
    "Intel": "-DGGML_VULKAN=on",
    "Apple": "-DGGML_METAL=on",
    "RPC": "-DGGML_RPC=on",
}
"""Build flags of llama.cpp by maker of the device; Vulkan works for all three makers of cards."""

_PAGES = {"NVIDIA": "cu124", "Apple": "metal"}
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_OTHER_BUS = re.compile(r"[0-9a-f]{4}:(?!00:)[0-9a-f]{2}:")
# Intel's integrated graphics are on the first PCI bus; a device on another bus is a card


def reinstall(device: str) -> str:
    """Return the command that replaces llama-cpp-python by a build for these devices."""
    return f'CMAKE_ARGS="{FLAGS[device]}" {anew()}'


def anew() -> str:
    """Return the command that reinstalls llama-cpp-python without pip's cache.

    Pip caches built wheels by name and version only, so it would reuse the CPU build.
    """
    return f"pip install --force-reinstall --no-cache-dir --no-deps {pinned()}"


def pinned() -> str:
    """Return pip's requirement for the llama-cpp-python version of this pyspec."""
    return f"llama-cpp-python=={LLAMA_CPP_VERSIONS[-1]}"


def advice(maker: str) -> str:
    """Say how to get a build for this maker's cards, with each command on a line of its own."""
    lines = ["To build one that can:", reinstall(maker)]
    if page := _PAGES.get(maker):
        wheel = f"{anew()} --only-binary :all: --index-url {WHEELS}/{page}"
        lines += ["Or, without a compiler, if that index has a wheel for this system:", wheel]
    return "\n".join(lines)


def cards(
    root: Path = Path("/"), system: str = sys.platform, machine: str = platform.machine()
) -> list[str]:
    """Return the makers of the graphics cards that this machine surely has, the likely fastest first.

    root: where /dev, /proc and /sys are.
    """
    if system == "darwin":
        return ["Apple"] if machine == "arm64" else []
    found = {_maker(device) for device in (root / "sys/class/drm").glob("card*/device")}
    if (root / "proc/driver/nvidia").is_dir() or (root / "dev/nvidia0").exists():
        found.add("NVIDIA")
    if (root / "dev/kfd").exists():
        found.add("AMD")
    return [maker for maker in _VENDORS.values() if maker in found]


def _maker(device: Path) -> str:
    """Return the maker of a PCI display device; empty if unknown, or if it may be part of the processor."""
    try:
        maker = _VENDORS.get((device / "vendor").read_text(encoding="ascii").strip(), "")
        own = maker != "Intel" or _OTHER_BUS.match(device.resolve().name)
    except (OSError, ValueError):
        return ""
    return maker if own else ""
