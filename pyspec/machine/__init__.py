"""This machine: its files and caches, processors, devices and child processes, and what other programs have on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

AUTO = "auto"  # a value of `n_gpu_layers` besides numbers: as many as fit
EXTRA_BUFFERS = ("auto", "on", "off")  # values of `extra_buffers`


def parse_devices(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """Parse device names from `CUDA0,CUDA1` or a list; empty for all."""
    words = text.split(",") if isinstance(text, str) else text or ()
    return tuple(word.strip() for word in words if word.strip())


class Heads(NamedTuple):
    """The shape of a model's attention: query heads, key and value heads, and the width of a key and of a value."""

    query: int
    key_value: int
    key_width: int
    value_width: int


class Window(NamedTuple):
    """size: tokens that a layer with a sliding window sees. share: of the layers that have one."""

    size: int = 0
    share: float = 0.0


class Shape(NamedTuple):
    """What attention's time depends on: the heads, the window of some layers, and the tokens of context in training."""

    heads: Heads
    window: Window
    n_ctx: int
