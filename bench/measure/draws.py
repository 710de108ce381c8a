"""The two best tokens of a row by what chooses there: its logits or, where noise is coupled, logits plus noise.

For a chain that draws for itself, the noise is unknown; the raw row's two best are returned.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec._lib import ffi, lib
from pyspec.grammar.masks import CANDIDATES, read_candidates
from pyspec.sampling.options import Coupling


class TopTwo(NamedTuple):
    """Two best tokens with scores z1 >= z2: raw logits, or logits + T * G. second -1 and z2 -inf: truncation left only one."""

    first: int
    second: int
    z1: float
    z2: float

    def gap(self, temperature: float) -> float:
        """Nats between them in the distribution in force; temperature 0 stands for that of the raw row."""
        return (self.z1 - self.z2) / (temperature or 1.0)


def top_two(
    row: npt.NDArray[np.float32], chain: Any = None, coupling: Coupling | None = None, at: int = 0
) -> TopTwo:
    """The two best of raw logits [n_vocab]. chain: the `LlamaSampler` that truncates, None for the whole row.

    at: the position of the token in its sequence, prompt included.
    """
    if coupling is None:
        return _best(np.arange(len(row), dtype=np.int32), row.astype(np.float64))
    ids, scaled = left(row, chain, coupling.temperature)
    return _best(ids, coupling.temperature * (scaled + noise_of(coupling.seed, at, ids)))


def _best(ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> TopTwo:
    if len(ids) < 2:
        return TopTwo(int(ids[0]), -1, float(scores[0]), -np.inf)
    second, first = np.argpartition(scores, len(ids) - 2)[-2:]
    return TopTwo(int(ids[first]), int(ids[second]), float(scores[first]), float(scores[second]))


def left(
    row: npt.NDArray[np.float32], chain: Any, temperature: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Ids that a chain leaves of a row, and their logits divided by the temperature."""
    held = np.zeros(len(row), dtype=CANDIDATES)
    held["id"], held["logit"] = np.arange(len(row)), row
    if chain is None:
        return held["id"], row.astype(np.float64) / temperature
    array = llama_cpp.llama_token_data_array(
        ctypes.cast(held.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data)),
        len(row), -1, False,
    )  # fmt: skip
    llama_cpp.llama_sampler_apply(chain.sampler, ctypes.byref(array))
    found = read_candidates(ctypes.pointer(array))  # a sampler may have moved the start
    return found["id"].copy(), found["logit"].astype(np.float64)


def noise_of(seed: int, at: int, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The noise G of some ids at a position of a sequence."""
    own, out = np.ascontiguousarray(ids, dtype=np.int32), np.empty(len(ids))
    there, found = ffi.from_buffer("int32_t[]", own), ffi.from_buffer("double[]", out)
    lib.ps_noise(seed, at, there, len(own), found)
    return out
