"""llama.cpp's devices other than the CPU: graphics cards, Metal, and machines that run its RPC server."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspec._version import LLAMA_CPP_VERSION
from pyspec.errors import OptionError
from pyspec.machine import parse_devices
from pyspec.machine.child import ggml_function
from pyspec.machine.files import recall, remember
from pyspec.machine.machine import this_machine

_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator")  # ggml_backend_dev_type's values

_SPARE, _SPARE_SHARE = 1 << 30, 0.1
# bytes to leave free on a device for kernels' own buffers and other programs, at most this share of its memory

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")
_WARNED = "a card that this build cannot use"


@dataclass(frozen=True)
class Device:
    """A device of llama.cpp's."""

    name: str  # ggml's
    description: str
    kind: str  # GPU, integrated GPU, RPC, accelerator or CPU
    free: int  # bytes, as `total`; both 0 if the device does not say
    total: int
    address: int

    @property
    def takes_layers(self) -> bool:
        """Whether llama.cpp can put layers there; an accelerator only speeds up those on the CPU."""
        return self.kind in ("GPU", "integrated GPU", "RPC")

    def __str__(self) -> str:
        memory = f", {self.free / 1e9:.1f} of {self.total / 1e9:.1f} GB free" if self.total else ""
        return f"{self.name} ({self.description}), {self.kind}{memory}"


@cache
def _ggml(name: str, restype: Any, *argtypes: Any) -> Any:
    from llama_cpp import llama_cpp  # noqa: PLC0415 - listing models does not need it

    llama_cpp.llama_backend_init()
    return ggml_function(llama_cpp, name, restype, *argtypes)


def devices() -> list[Device]:
    """Return all devices of this build, including the CPU, with their free memory."""
    size, text, pointer = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    found = []
    for index in range(_ggml("ggml_backend_dev_count", size)()):
        device = _ggml("ggml_backend_dev_get", pointer, size)(index)
        free, total = size(), size()
        _ggml("ggml_backend_dev_memory", None, pointer, *[ctypes.POINTER(size)] * 2)(
            device, ctypes.byref(free), ctypes.byref(total)
        )
        registry = _ggml("ggml_backend_dev_backend_reg", pointer, pointer)(device)
        number = _ggml("ggml_backend_dev_type", ctypes.c_int, pointer)(device)
        kind = _KINDS[number] if 0 <= number < len(_KINDS) else "other"
        if _ggml("ggml_backend_reg_name", text, pointer)(registry) == b"RPC":
            kind = "RPC"
        name, description = (
            _ggml(f"ggml_backend_dev_{what}", text, pointer)(device).decode("utf-8", "replace").strip()
            for what in ("name", "description")
        )  # fmt: skip
        found.append(Device(name, description, kind, free.value, total.value, device))
    return found


def layer_devices(names: Sequence[str] = ()) -> list[Device]:
    """Return the devices that can take layers: the named ones, or all, in llama.cpp's order (RPC first).

    An integrated card counts only if there is no other. Raises OptionError for an unknown name.
    """
    found = [each for each in devices() if each.takes_layers]
    if names:
        by_name = {each.name.lower(): each for each in found}
        if missing := [name for name in names if name.lower() not in by_name]:
            there = ", ".join(each.name for each in found) or "none; pyspec info lists them"
            raise OptionError(f"there is no device {missing[0]}", f"devices here: {there}")
        return [by_name[name.lower()] for name in names]
    own = [each for each in found if each.kind == "GPU"]
    own = own or [each for each in found if each.kind == "integrated GPU"]
    return [each for each in found if each.kind == "RPC"] + own


def buffer_names(found: Iterable[Device]) -> dict[str, str]:
    """Return each device's name by the name of its buffers, as llama.cpp logs it."""
    pointer = ctypes.c_void_p
    buffer_type = _ggml("ggml_backend_dev_buffer_type", pointer, pointer)
    name_of = _ggml("ggml_backend_buft_name", ctypes.c_char_p, pointer)
    return {name_of(buffer_type(each.address)).decode(): each.name for each in found}


def cpu_buffer_type() -> int:
    """Return the address of the type of buffers in main memory."""
    return int(_ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)())


def device_array(found: Sequence[Device]) -> Any:
    """Return llama.cpp's array of devices. It must live as long as the parameters that point to it."""
    return (ctypes.c_void_p * (len(found) + 1))(*(each.address for each in found))


def lacking_devices(names: Sequence[str] = ()) -> list[str]:
    """Return lines that say what to install if no device can take layers, else none. Raises OptionError for an unknown name."""
    if layer_devices(names):
        return []
    makers = cards()[:1] or [maker for maker in FLAGS if maker not in ("Apple", "RPC")]
    builds = [f"{reinstall(maker)}  # {maker}" for maker in makers]
    sentence = "this build of llama-cpp-python has no device, so all layers stay on the CPU."
    return [f"{sentence} To build for your card (DEVICES.md has wheels):", *builds]


def missed_card() -> str:
    """Say what to install if this machine has a card and this build has no devices; else empty."""
    return "\n".join(lacking_devices()) if cards() else ""


def missed_card_once() -> str:
    """Like `missed_card`, but only once per machine and build."""
    here = this_machine()
    if recall(_WARNED, here) is not None:
        return ""
    if sentence := missed_card():
        remember(_WARNED, here, "said")
    return sentence


def room_on(device: Device) -> int:
    """Return how many bytes may be used; 0 if the device does not say what is free."""
    return int(device.free - min(_SPARE, _SPARE_SHARE * device.total))


# -- user options ------------------------------------------------------------------------------------------------------


def add_rpc_servers(servers: str | Iterable[str]) -> None:
    """Use llama.cpp's RPC servers, each `HOST:PORT`, as devices for the rest of this process.

    They have no authentication: use trusted networks only. A server serves one process at a time, and if it dies, llama.cpp
    ends this process. Raises OptionError for an invalid or unreachable address, or a build without RPC.
    """
    for server in parse_devices(servers):
        if not _SERVER.fullmatch(server):
            raise OptionError(f"--rpc {server} is not an address", "write it as HOST:PORT")
        _reach(server)
        _add_server(server)


def _reach(server: str) -> None:
    """Test the connection: llama.cpp aborts if nobody listens."""
    import socket  # noqa: PLC0415 - only for --rpc

    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"no RPC server answers at {server}: {reason}"
        raise OptionError(what, "start it first") from None


@cache
def _add_server(server: str) -> None:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    registry = _ggml("ggml_backend_reg_by_name", pointer, text)(b"RPC")
    proc = _ggml("ggml_backend_reg_get_proc_address", pointer, pointer, text)
    if not (registry and (add := proc(registry, b"ggml_backend_rpc_add_server"))):
        raise OptionError("this llama-cpp-python has no RPC", f"reinstall it: {reinstall('RPC')}")
    if not (made := ctypes.CFUNCTYPE(pointer, text)(add)(server.encode())):
        raise OptionError(f"the RPC server at {server} has no devices", "start it with one")
    _ggml("ggml_backend_register", None, pointer)(made)


# -- builds of llama-cpp-python ----------------------------------------------------------------------------------------

FLAGS = {
    "NVIDIA": "-DGGML_CUDA=on",
    "AMD": "-DGGML_HIP=on",
    "Intel": "-DGGML_VULKAN=on",
    "Apple": "-DGGML_METAL=on",
    "RPC": "-DGGML_RPC=on",
}
"""Build flags of llama.cpp by maker of the device; Vulkan works for all three makers of cards."""

_DRIVERS = {"NVIDIA": ("proc/driver/nvidia", "dev/nvidia0"), "AMD": ("dev/kfd",)}


def reinstall(device: str) -> str:
    """Return the command that replaces llama-cpp-python by a build for these devices."""
    return f'CMAKE_ARGS="{FLAGS[device]}" {anew()}'


def anew() -> str:
    """Return the command that reinstalls llama-cpp-python. Pip's cache goes by name and version: it would give the CPU build."""
    return f"pip install --force-reinstall --no-cache-dir --no-deps {pinned()}"


def pinned() -> str:
    """Return pip's requirement for the llama-cpp-python version of this pyspec."""
    return f"llama-cpp-python=={LLAMA_CPP_VERSION}"


def cards(
    root: Path = Path("/"), system: str = sys.platform, machine: str = platform.machine()
) -> list[str]:
    """Return the makers of graphics cards with drivers here, the likely fastest first. root: where /dev and /proc are."""
    if system == "darwin":
        return ["Apple"] if machine == "arm64" else []
    return [maker for maker, signs in _DRIVERS.items() if any((root / s).exists() for s in signs)]
