"""The user's choice of draft length."""

from __future__ import annotations

from math import inf
from typing import TypeAlias

import msgspec

from pyspec.errors import OptionError

MAX_FIXED = 63
_HINT = "use fixed:K, confidence:P, companion or auto"


class FixedLength(msgspec.Struct, frozen=True):
    """Always k drafted tokens."""

    k: int


class Confidence(msgspec.Struct, frozen=True):
    """Draft on while the draft's probability of each token is at least p."""

    p: float


class Companion(msgspec.Struct, frozen=True):
    """By goodput, with draft and companion always on; it may still verify 0 tokens."""


class Auto(msgspec.Struct, frozen=True):
    """By goodput; draft and companion are switched off where they do not pay."""


Length: TypeAlias = FixedLength | Confidence | Companion | Auto
"""What `--length` names."""


def parse_length(text: str) -> Length:
    """Parse `fixed:K` (0..63), `confidence:P` (0..1), `companion` or `auto`; raises OptionError otherwise."""
    if not isinstance(text, str):
        raise OptionError(f"a draft length is given as text, not as {text!r}", _HINT)
    name, colon, value = text.strip().lower().partition(":")
    if name in ("companion", "auto") and not colon:
        return Companion() if name == "companion" else Auto()
    if name == "fixed":
        if not (value.isascii() and value.isdigit() and len(value) < 5 and int(value) <= MAX_FIXED):
            raise OptionError(
                f"the fixed draft length must be a whole number 0..{MAX_FIXED}", _HINT
            )
        return FixedLength(int(value))
    if name == "confidence":
        p = _number(value)
        if not 0.0 <= p <= 1.0:
            raise OptionError("the confidence must be a number between 0 and 1", _HINT)
        return Confidence(p)
    raise OptionError(f"unknown draft length {text[:40]!r}", _HINT)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return inf
