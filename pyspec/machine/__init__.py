"""This machine: its files and caches, processors, devices and child processes, and what other programs have on it."""

from __future__ import annotations

from collections.abc import Iterable

AUTO = "auto"  # a value of `n_gpu_layers` besides numbers: as many as fit
EXTRA_BUFFERS = ("auto", "on", "off")  # values of `extra_buffers`


def parse_devices(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """Parse device names from `CUDA0,CUDA1` or a list; empty for all."""
    words = text.split(",") if isinstance(text, str) else text or ()
    return tuple(word.strip() for word in words if word.strip())
