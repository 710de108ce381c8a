"""Random numbers for drawing tokens, and their seeds; the noise itself is in native/ps_noise.c."""

from __future__ import annotations

import hashlib
import os
from typing import Literal, NamedTuple, get_args

from pyspec.errors import OptionError

Noise = Literal["auto", "coupled", "block", "llama.cpp"]
"""Whose random numbers draw a token: pyspec's, which drafts share or, to be verified as a whole, do not, or llama.cpp's own.

"auto" is "block" where nobody gave a seed and that is faster, else "coupled".
"""

Draw = Literal["greedy", "coupled", "block", "apart"]
"""How target and draft choose: both take their argmax, both draw with the same noise, each with its own, or the target draws
alone."""

COLDEST = 1e-30
"""The lowest temperature above 0: as a float it must not become 0, nor logits divided by it infinite and so equal."""

ANY_SEED = 0xFFFFFFFF
"""As in llama.cpp, a seed that asks for a random one."""


class Coupling(NamedTuple):
    """Noise that draws tokens, as a rule shared by target and draft: the argmax of logit / temperature + G(seed, position, id).

    min_p limits what the draft draws from, as the target's chain does for the target, and where it is 0 (no limit) so do top_k
    and top_p; a first token that fills top_p is the only one left anyway. top_k: how many ids of a row the target's chain keeps
    first; 0 where something in it sees the row before. tempered: whether the draft learns a temperature of its own, which would
    change a text that depends on the draft. block: whether the draft draws with noise of its own, to be verified as a whole.
    """

    seed: int
    temperature: float
    min_p: float
    top_p: float = 0.0
    top_k: int = 0
    tempered: bool = False
    block: bool = False


NOISES: tuple[Noise, ...] = get_args(Noise)


def check_noise(noise: object) -> None:
    """Raise OptionError for an unknown kind of noise; accepts None."""
    if noise is not None and noise not in NOISES:
        raise OptionError(f"sampling is {noise!r}", f"use {' or '.join(NOISES)}")


def derive_seed(seed: int, *names: object) -> int:
    """A 32-bit seed for one of several answers: choices of a request, records of a batch, questions."""
    digest = hashlib.sha256("\0".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def chance_seed() -> int:
    """A random 32-bit seed, which can be reported to the user."""
    while (seed := int.from_bytes(os.urandom(4), "little")) == ANY_SEED:
        pass
    return seed
