"""The two small matrices of a coupled draft, kept beside its GGUF.

llama.cpp refuses tensors it does not know, so what feeds hidden states into the draft lives in a
NumPy .npz (no pickles):

    format          int64, 1
    w_h             float16 [width, target width]: embedding(token t) + w_h @ target_state(t - 1)
    w_s             float16 [width, width]: embedding(token t) + w_s @ own_state(t - 1)
    target_sha256   of the target's GGUF that was trained on
    target_norms    sha256 over the target's norm weights: equal for every quantisation of it
    draft_sha256    of the draft's GGUF

States are the final ones, after the last norm: what llama.cpp returns as embeddings with pooling
NONE. The first position has no state before it; its input is the embedding alone. The embedding
is the row of `token_embd.weight` in the draft's GGUF.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspec.models.recipe.gguf_io import Source
from pyspec.models.recipe.rows import file_sha256

from pyspec.errors import TrainingError

SIDECAR_FORMAT = 1


@dataclass(frozen=True)
class Sidecar:
    """See the module's docstring."""

    w_h: NDArray[np.float16]
    w_s: NDArray[np.float16]
    target_sha256: str
    target_norms: str
    draft_sha256: str


def norms_digest(source: Source) -> str:
    """sha256 over the float32 norm weights of a model, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(n for n in source.tensors if n.endswith("norm.weight")):
        digest.update(name.encode() + b"\0" + source.tensor(name).astype("<f4").tobytes())
    return digest.hexdigest()


def save(path: Path, w_h: NDArray[Any], w_s: NDArray[Any], target: Source, draft: Path) -> None:
    """Write the sidecar of `draft`, whose coupling matrices are `w_h` and `w_s`."""
    np.savez(
        path,
        format=np.int64(SIDECAR_FORMAT),
        w_h=np.asarray(w_h, np.float16),
        w_s=np.asarray(w_s, np.float16),
        target_sha256=np.array(file_sha256(target.path)),
        target_norms=np.array(norms_digest(target)),
        draft_sha256=np.array(file_sha256(draft)),
    )


def load(path: Path) -> Sidecar:
    """Read a sidecar; raises `TrainingError` when it is not one of this format."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if int(file["format"]) != SIDECAR_FORMAT:
                raise ValueError(f"format {int(file['format'])}")
            texts = (str(file[k]) for k in ("target_sha256", "target_norms", "draft_sha256"))
            return Sidecar(file["w_h"], file["w_s"], *texts)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise TrainingError(f"{path} is not a sidecar of a coupled draft", str(error)) from error
