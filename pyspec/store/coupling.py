"""The sidecar of a coupled draft: the matrices that carry the target's hidden states into it.

A sidecar is an .npz beside the draft's GGUF, under the same name: `w_h` [width, n_hidden], `w_s` [width, width], and `meta`, JSON
with the format's version and the sha256 of the draft and of the target it was made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Coupling:
    """What a coupled draft is fed with.

    The draft's input at position t is `embeddings[token_t] + w_h @ h` with h the target's final hidden state at t - 1, or
    `embeddings[token_t] + w_s @ s` with s its own state at t - 1 where the target has not been yet.

    embeddings: [n_vocab, width] float32; w_h: [width, n_hidden]; w_s: [width, width]; window: prompt states it is fed.
    """

    embeddings: npt.NDArray[np.float32]
    w_h: npt.NDArray[np.float32]
    w_s: npt.NDArray[np.float32]
    window: int = 512


def find_sidecar(draft: Path) -> Path | None:
    """The sidecar of a draft, or None for an independent one."""
    path = draft.with_suffix(".npz")
    return path if path.is_file() else None


def read_coupling(sidecar: Path, draft: Path, target: str) -> Coupling:
    """Read and check a sidecar."""
    raise NotImplementedError
