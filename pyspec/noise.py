"""Whose random numbers draw a token, and their seeds; the noise itself is in native/ps_noise.c."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, NamedTuple

from pyspec.errors import OptionError

Noise = Literal["coupled", "llama.cpp"]
"""Whose random numbers draw a token: ours, which drafts share, or llama.cpp's own."""

Draw = Literal["greedy", "coupled", "apart"]
"""How the target's choice meets a draft's: both take their argmax, both draw with the same noise, or the target draws alone."""

COLDEST = 1e-30
"""The lowest temperature above 0: a float of its must not become 0, nor logits over it infinite, and so equal."""

ANY_SEED = 0xFFFFFFFF
"""A seed that asks for one of chance, as llama.cpp has it."""


class Coupling(NamedTuple):
    """Noise that target and draft share: at each position of a text the argmax of logit / temperature + G(seed, position, id).

    min_p bounds what the draft draws from, as the target's chain does for the target, and top_p where it leaves one token; 0 is
    no bound.
    """

    seed: int
    temperature: float
    min_p: float
    top_p: float = 0.0


NOISES = ("coupled", "llama.cpp")


def check_noise(noise: object) -> None:
    """Raise OptionError for what names no random numbers; None is left alone."""
    if noise is not None and noise not in NOISES:
        raise OptionError(f"sampling is {noise!r}", f"use {' or '.join(NOISES)}")


def derive_seed(seed: int, *names: object) -> int:
    """A seed of 32 bits of its own for one of several answers: choices of a request, records of a batch, questions."""
    digest = hashlib.sha256("\0".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def chance_seed() -> int:
    """A seed of chance, of 32 bits, so that it can be given back."""
    return secrets.randbelow(ANY_SEED)
