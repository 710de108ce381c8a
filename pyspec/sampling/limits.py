"""Checks options before they reach llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from pyspec.errors import OptionError

MAX_DRAFT = 64
"""Most drafted tokens of one sequence in one round; `PS_MAX_DRAFT` in native/pyspec.h."""

MAX_TOKENS = 2**31 - 1  # longest answer that can be asked for


class Range(NamedTuple):
    """From `low` to `high`, both included; `whole` for integers, `usual` says what is sensible."""

    low: float
    high: float
    whole: bool
    usual: str


RANGES = {
    "n_ctx": Range(0, 1 << 24, True, "0 (as trained) to 16777216 tokens"),
    "n_batch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_ubatch": Range(1, 1 << 20, True, "1 to 1048576"),
    "pooling_type": Range(
        -1, 4, True, "-1 (the file's), 0 (none), 1 (mean), 2 (first), 3 (last) or 4 (rank)"
    ),
    "rope_scaling_type": Range(
        -1, 3, True, "-1 (the file's), 0 (none), 1 (linear), 2 (YaRN) or 3 (LongRoPE)"
    ),
    "attention_type": Range(-1, 1, True, "-1 (the file's), 0 (causal) or 1 (not causal)"),
    "n_threads": Range(0, 512, True, "1 to 512"),
    "n_threads_batch": Range(0, 512, True, "1 to 512"),
    "n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_max": Range(0, (1 << 31) - 1, True, "0 or more"),
    "seed": Range(-math.inf, math.inf, True, "a whole number"),
    "max_tokens": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for as many as fit"),
    "theta": Range(0.0, 1.0, False, "0 to 1"),
    "gap": Range(0.0, math.inf, False, "0 or more, in nats"),
    "budget": Range(0.0, math.inf, False, "0 or more, in nats"),
    "confirm": Range(0, 16, True, "0 to 16 tokens"),
    "timeout": Range(0.0, 1e9, False, "more than 0 seconds"),
    "wait": Range(0.0, 1e9, False, "True, False or a number of seconds"),
}
"""What llama.cpp and the rules accept; other values make it wrap, assert, or generate nonsense."""


KV_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 20: "IQ4_NL", 30: "BF16",
}  # fmt: skip
"""ggml's numbers of the types that KV caches may have."""

_TYPED = ("type_k", "type_v", "draft_type_k", "draft_type_v")

MAX_BYTES = 127  # longest key or text in llama.cpp's overrides, without the NUL after it


def check_overrides(overrides: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """The pairs of `kv_overrides`. Raises OptionError for one that llama.cpp cannot store."""
    pairs = tuple((overrides or {}).items())
    for key, value in pairs:
        known = isinstance(value, (bool, int, float, str))
        fits = known and not (isinstance(value, int) and abs(value) >= 2**63)
        texts = [text for text in (key, value) if isinstance(text, str)]
        short = all(len(text.encode()) <= MAX_BYTES and "\0" not in text for text in texts)
        if not (fits and key and short):
            raise OptionError(
                f"the override {key[:40]!r} cannot be used",
                f"use a bool, int, float or str; keys and strings have at most {MAX_BYTES} bytes",
            )
    return pairs


def check_ranges(options: Mapping[str, Any], ranges: Mapping[str, Range] = RANGES) -> None:
    """Raise OptionError for a number outside its range; skips None, and options without a range."""
    for name in _TYPED:
        if options.get(name) is not None and options[name] not in KV_TYPES:
            usual = ", ".join(f"{number} ({kind})" for number, kind in KV_TYPES.items())
            raise OptionError(f"{name} is {options[name]!r}", f"use {usual}")
    for name, value in options.items():
        if name not in ranges or value is None:
            continue
        allowed = ranges[name]
        good = isinstance(value, Integral if allowed.whole else Real)
        if not good or not allowed.low <= value <= allowed.high:  # NaN is not in between either
            raise OptionError(f"{name} is {value!r}", f"use {allowed.usual}")


MAX_BREAKERS, BREAKER_BYTES = 16, 40
"""llama.cpp looks for each breaker in every word of a vocabulary, and truncates longer ones."""


def check_breakers(breakers: Any) -> None:
    """Raise OptionError for an invalid list of DRY sequence breakers."""
    if isinstance(breakers, str) or len(breakers) > MAX_BREAKERS:
        shown, usual = str(breakers)[:40], f"use a list of at most {MAX_BREAKERS} strings"
        raise OptionError(f"dry_sequence_breakers is {shown!r}", usual)
    for word in breakers:
        if not isinstance(word, str) or not 1 <= len(_bytes(word)) <= BREAKER_BYTES or "\0" in word:
            raise OptionError(
                f"dry_sequence_breakers has {str(word)[:40]!r}",
                f"use strings of 1 to {BREAKER_BYTES} bytes without NUL",
            )


def check_bias(bias: Any) -> dict[int, float] | None:
    """Return a `logit_bias` with numbers as keys and values, None if it is empty. Raises OptionError."""
    try:
        pairs = {int(token): float(value) for token, value in (bias or {}).items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        pairs = {0: math.nan}
    if any(math.isnan(value) for value in pairs.values()):
        raise OptionError(f"logit_bias is {str(bias)[:40]}", "give numbers by token id")
    return pairs or None


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


_UNQUANTISED = (None, 0, 1, 30)
# llama.cpp's F32, F16 and BF16


def is_quantised(kind: int | None) -> bool:
    """Whether a type of the KV cache, by ggml's number, is quantised."""
    return kind not in _UNQUANTISED


def check_cache_type(type_v: int | None, flash_attn: bool, name: str = "type_v") -> None:
    """Raise OptionError for a quantised value cache without flash attention, which llama.cpp cannot use."""
    if is_quantised(type_v) and not flash_attn:
        raise OptionError(
            f"{name} is quantised, which needs flash attention, and that is off",
            "turn it on (flash_attn=True, -fa on), or leave the type out",
        )
