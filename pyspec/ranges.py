"""The range of each numeric option, in one place for the class and the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspec.errors import OptionError


class Range(NamedTuple):
    """From `low` to `high`, both included; `whole` for integers, `usual` says what is sensible."""

    low: float
    high: float
    whole: bool
    usual: str

    @property
    def says(self) -> str:
        """The range in words."""
        return f"use {self.usual}"


RANGES = {
    "n_ctx": Range(0, 1 << 24, True, "0 (the model's own) to 16777216 tokens"),
    "n_batch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_ubatch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_threads": Range(0, 512, True, "1 to 512"),
    "n_threads_batch": Range(0, 512, True, "1 to 512"),
    "n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_max": Range(0, (1 << 31) - 1, True, "0 or more"),
    "max_tokens": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for as many as fit"),
    "temperature": Range(-1e9, 1e9, False, "0 for greedy, or up to about 2"),
    "top_k": Range(-(1 << 31), (1 << 31) - 1, True, "1 or more, or 0 for all"),
    "top_p": Range(0.0, 1.0, False, "more than 0, up to 1"),
    "min_p": Range(0.0, 1.0, False, "0 to 1"),
    "typical_p": Range(0.0, 1.0, False, "more than 0, up to 1"),
    "repeat_penalty": Range(1e-3, 1e3, False, "1 for none, or about 1.1"),
    "frequency_penalty": Range(-1e3, 1e3, False, "-2 to 2"),
    "presence_penalty": Range(-1e3, 1e3, False, "-2 to 2"),
    "mirostat_tau": Range(0.0, 1e3, False, "0 or more, 5 as a rule"),
    "mirostat_eta": Range(0.0, 1e3, False, "0 or more, 0.1 as a rule"),
}
"""What llama.cpp can take; a value outside makes it wrap, assert, or answer nonsense."""


def check_range(name: str, value: Any, shown: str | None = None) -> None:
    """Raise OptionError for a number outside the range of `name`; `shown` is what the user calls it."""
    allowed = RANGES[name]
    good = isinstance(value, int) if allowed.whole else isinstance(value, (int, float))
    if not good or not math.isfinite(value) or not allowed.low <= value <= allowed.high:
        raise OptionError(f"{shown or name} is {value!r}", allowed.says)


def check_ranges(options: Mapping[str, Any]) -> None:
    """`check_range` for every option that has a range and is not None."""
    for name, value in options.items():
        if name in RANGES and value is not None:
            check_range(name, value)
