"""The devices that llama.cpp found beside the processor: graphics cards, Metal, and machines that answer by its RPC."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspec.errors import OptionError
from pyspec.store._child import add_server, ggml_function
from pyspec.store.builds import FLAGS, advice, cards, reinstall
from pyspec.store.files import recall, remember
from pyspec.store.gguf import Header
from pyspec.store.machine import this_machine

_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator")
"""What ggml_backend_dev_type counts from 0 on."""

AUTO = "auto"
"""What `n_gpu_layers` may be beside a number."""

_SPARE, _SPARE_SHARE = 1 << 30, 0.1
# bytes of a device left free, at most this share of it: for its kernels' own buffers and for other programs

_LAYERED = ("GPU", "integrated GPU", "RPC")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")


@dataclass(frozen=True)
class Device:
    """One device, as ggml names it; kind is GPU, integrated GPU, RPC, accelerator or CPU.

    free and total are bytes, both 0 where the device does not say.
    """

    name: str
    description: str
    kind: str
    free: int
    total: int
    address: int

    @property
    def takes_layers(self) -> bool:
        """Whether llama.cpp puts layers there; an accelerator only speeds up the processor's."""
        return self.kind in _LAYERED

    def __str__(self) -> str:
        memory = f", {self.free / 1e9:.1f} of {self.total / 1e9:.1f} GB free" if self.total else ""
        return f"{self.name} ({self.description}), {self.kind}{memory}"


@cache
def _ggml(name: str, restype: Any, *argtypes: Any) -> Any:
    from llama_cpp import llama_cpp  # noqa: PLC0415 - who only lists models need not load it

    llama_cpp.llama_backend_init()
    return ggml_function(llama_cpp, name, restype, *argtypes)


def devices() -> list[Device]:
    """All devices of this build, the processor among them, with what is free of their memory now."""
    size, text, pointer = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    get = _ggml("ggml_backend_dev_get", pointer, size)
    found = []
    for index in range(_ggml("ggml_backend_dev_count", size)()):
        device = get(index)
        free, total = size(), size()
        _ggml("ggml_backend_dev_memory", None, pointer, *[ctypes.POINTER(size)] * 2)(
            device, ctypes.byref(free), ctypes.byref(total)
        )
        registry = _ggml("ggml_backend_dev_backend_reg", pointer, pointer)(device)
        family = _ggml("ggml_backend_reg_name", text, pointer)(registry)
        number = _ggml("ggml_backend_dev_type", ctypes.c_int, pointer)(device)
        kind = _KINDS[number] if 0 <= number < len(_KINDS) else "other"
        name, description = (
            _ggml(f"ggml_backend_dev_{what}", text, pointer)(device).decode("utf-8", "replace").strip()
            for what in ("name", "description")
        )  # fmt: skip
        kind = "RPC" if family == b"RPC" else kind
        found.append(Device(name, description, kind, free.value, total.value, device))
    return found


def layer_devices(names: Sequence[str] = ()) -> list[Device]:
    """The devices that layers may go to: those named, or all, in llama.cpp's order (others' machines first).

    An integrated card counts only where there is no other. Raises OptionError for a name that there is not.
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
    """By the name of its buffers, as llama.cpp logs it, the name of each device."""
    pointer = ctypes.c_void_p
    buffer_type = _ggml("ggml_backend_dev_buffer_type", pointer, pointer)
    name_of = _ggml("ggml_backend_buft_name", ctypes.c_char_p, pointer)
    return {name_of(buffer_type(each.address)).decode(): each.name for each in found}


def device_array(found: Sequence[Device]) -> Any:
    """The list that llama.cpp takes as a model's devices; it has to live as long as the parameters."""
    return (ctypes.c_void_p * (len(found) + 1))(*(each.address for each in found))


def require_devices(names: Sequence[str] = ()) -> None:
    """Raise OptionError, with what to install, where layers were asked for and there is no device for them."""
    if layer_devices(names):
        return
    makers = cards()[:1] or [maker for maker in FLAGS if maker not in ("Apple", "RPC")]
    builds = [f"{reinstall(maker)}  # {maker}" for maker in makers]
    raise OptionError(
        "-ngl needs a device, and this build of llama-cpp-python has none",
        "\n".join(["leave -ngl out, or build for your card:", *builds]),
    )


_TOLD = "a card that this build cannot use"


def missed_card() -> str:
    """What to install where this machine has a card and this build has no devices; empty where all is well."""
    found = cards()
    if not found or layer_devices():
        return ""
    maker = found[0]
    return f"this machine has {maker} graphics, which this llama-cpp-python cannot use. {advice(maker)}"


def missed_card_once() -> str:
    """As `missed_card`, and empty where this was said of this machine and build before."""
    here = this_machine()
    if recall(_TOLD, here) is not None:
        return ""
    if said := missed_card():
        remember(_TOLD, here, "said")
    return said


# -- how many layers ---------------------------------------------------------------------------------------------------


def room_on(device: Device) -> int:
    """Bytes that may be taken; none where the device does not say what is free."""
    return int(device.free - min(_SPARE, _SPARE_SHARE * device.total))


def count_layers(header: Header) -> int:
    """Layers that can be placed, the output among them."""
    blocks = header.of_arch("block_count")
    return (blocks if isinstance(blocks, int) else 0) + 1


def rough_layers(header: Header, devices: Sequence[Device]) -> int:
    """Layers that fit by sizes alone: a trial only has to meet the kernels of the device, and 0 where no room is left."""
    size = sum(each.nbytes for each in header.tensors)
    room = sum(max(0, room_on(each)) for each in devices)
    most = count_layers(header)
    return max(1, min(most, int(0.5 * most * room / max(1, size)))) if room else 0


# -- chosen by users ---------------------------------------------------------------------------------------------------


def parse_devices(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names of devices from `CUDA0,CUDA1` or a list of them; none for all there are."""
    words = text.split(",") if isinstance(text, str) else text or ()
    return tuple(word.strip() for word in words if word.strip())


def add_rpc_servers(servers: str | Iterable[str]) -> None:
    """Make devices of llama.cpp's RPC servers, `HOST:PORT` each, for the rest of this process.

    They have no authentication: for networks that can be trusted. One process at a time is served, and where a server dies
    llama.cpp ends this process. Raises OptionError for what is no address, cannot be reached, or where this build has no RPC.
    """
    for server in parse_devices(servers):
        if not _SERVER.fullmatch(server):
            raise OptionError(f"--rpc {server} is not an address", "write it as HOST:PORT")
        _reach(server)
        _add_server(server)


def _reach(server: str) -> None:
    """llama.cpp aborts where nobody listens, so that is found out here."""
    import socket  # noqa: PLC0415 - for --rpc alone

    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"no RPC server answers at {server}: {reason}", "start it first"
        ) from None


@cache
def _add_server(server: str) -> None:
    from llama_cpp import llama_cpp  # noqa: PLC0415 - as above

    llama_cpp.llama_backend_init()
    found = add_server(llama_cpp, server)
    if found is None:
        raise OptionError(
            "this llama-cpp-python has no RPC",
            f"install it anew: {reinstall('RPC')}",
        )
    if not found:
        raise OptionError(f"the RPC server at {server} has no devices", "start it with one")
    _SERVERS.append(server)


_SERVERS: list[str] = []


def rpc_servers() -> tuple[str, ...]:
    """The servers whose devices this process has, in the order in which llama.cpp numbers them."""
    return tuple(_SERVERS)
