"""The sidecar of a coupled draft: the matrices that carry the target's hidden states into it.

A sidecar is the .npz beside the draft's GGUF that `pyspec.models.recipe.sidecar` writes. It names the draft and the target it was
made for by hash; the target may have been quantised otherwise since, which leaves its norm weights as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.atomic import write_whole
from pyspec.errors import DraftMismatch, ModelInvalid
from pyspec.store.cache import cache_dir, file_sha256, recall, remember, stamp
from pyspec.store.gguf import Header, Tensor
from pyspec.store.header import facts_of, read_header

FORMAT = 1
_LARGEST = 1 << 30
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Coupling:
    """What a coupled draft is fed with.

    The draft's input at position t is `embeddings[token_t] + w_h @ h` with h the target's final
    hidden state at t - 1, or `embeddings[token_t] + w_s @ s` with s its own state at t - 1 where
    the target has not been yet.

    embeddings: [n_vocab, width] float32; w_h: [width, n_hidden]; w_s: [width, width]; window: how
    many states of a prompt it is fed. Each of them costs the target a row of logits, since llama.cpp gives states and logits
    together: 32 rows are hardly felt in the first token's time.
    """

    embeddings: Floats
    w_h: Floats
    w_s: Floats
    window: int = 32


def find_sidecar(draft: Path) -> Path | None:
    """The sidecar of a draft, or None for an independent one."""
    path = draft.with_suffix(".npz")
    return path if path.is_file() else None


def read_coupling(sidecar: Path, draft: Path, target: Path) -> Coupling:
    """Read a sidecar and the draft's embeddings.

    Raises ModelInvalid for a damaged file, DraftMismatch where draft or target are not those that
    the sidecar was made for.
    """
    fields = _load(sidecar)
    if fields["draft_sha256"] != file_sha256(draft):
        raise DraftMismatch(
            f"{sidecar.name} belongs to another draft than {draft.name}", "install both again"
        )
    if fields["target_sha256"] != file_sha256(target) and fields["target_norms"] != norms_digest(
        target
    ):
        raise DraftMismatch(
            f"{draft.name} was trained on the states of another target than {target.name}",
            "use --draft none, or a draft made for this target",
        )
    w_h, w_s = (np.ascontiguousarray(fields[name], dtype=np.float32) for name in ("w_h", "w_s"))
    return Coupling(_unpacked(draft, fields["draft_sha256"], len(w_h)), w_h, w_s)


def _unpacked(draft: Path, sha256: str, width: int) -> Floats:
    """`read_embeddings`, mapped from the cache where a former start unpacked them: to unpack takes 0.1 s."""
    kept = cache_dir() / "unpacked" / f"{sha256[:32]}.npy"
    facts = facts_of(draft)
    shape = (facts.n_vocab if facts is not None else 0, width)
    with contextlib.suppress(OSError, ValueError, EOFError):
        mapped = np.load(kept, mmap_mode="r", allow_pickle=False)
        if (mapped.shape, mapped.dtype, mapped.flags.c_contiguous) == (shape, np.float32, True):
            return np.asarray(mapped)
    values = read_embeddings(draft)
    whole = io.BytesIO()
    np.save(whole, values)
    with contextlib.suppress(OSError):  # only a short cut
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, [whole.getvalue()])
    return values


def _load(sidecar: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(sidecar) as members:
            if sum(member.file_size for member in members.infolist()) > _LARGEST:
                raise ModelInvalid(f"{sidecar} unpacks to more than {_LARGEST >> 20} MiB")
        with np.load(sidecar, allow_pickle=False) as file:
            if int(file["format"]) != FORMAT:
                raise ModelInvalid(
                    f"{sidecar} has format {int(file['format'])}, not {FORMAT}", "update pyspec"
                )
            fields: dict[str, Any] = {name: file[name] for name in ("w_h", "w_s")}
            fields |= {
                name: str(file[name]) for name in ("draft_sha256", "target_sha256", "target_norms")
            }
    except ModelInvalid:
        raise
    except (*_DAMAGE, MemoryError) as error:
        raise ModelInvalid(
            f"{sidecar} is not a sidecar of a coupled draft: {error}", "install it again"
        ) from error
    w_h, w_s = fields["w_h"], fields["w_s"]
    if w_h.ndim != 2 or w_s.shape != (w_h.shape[0], w_h.shape[0]):
        raise ModelInvalid(
            f"{sidecar} holds matrices of shapes {w_h.shape} and {w_s.shape}", "install it again"
        )
    return fields


def norms_digest(model: Path) -> str:
    """sha256 over a model's float32 norm weights in the order of their names: equal for each quantisation of it."""
    at = stamp(model)
    known = recall("norms", at)
    if known is not None:
        return known
    digest = _norms_digest(read_header(model))
    if stamp(model) == at:  # else it changed while it was read
        remember("norms", at, digest)
    return digest


def _norms_digest(header: Header) -> str:
    digest = hashlib.sha256()
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.name):
        if tensor.name.endswith("norm.weight"):
            digest.update(tensor.name.encode() + b"\0" + read_tensor(header, tensor).tobytes())
    return digest.hexdigest()


def read_embeddings(model: Path) -> Floats:
    """The token embeddings of a model, [n_vocab, width]."""
    header = read_header(model)
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            width, n_vocab = tensor.shape[:2]
            return read_tensor(header, tensor).reshape(n_vocab, width)
    raise ModelInvalid(f"{model} has no token embeddings", "it is no language model")


def read_tensor(header: Header, tensor: Tensor) -> Floats:
    """A tensor's values, flat; ModelInvalid for a type that the recipe does not make."""
    expand = _EXPAND.get(tensor.type.lower())
    if expand is None:
        raise ModelInvalid(
            f"{header.path} keeps {tensor.name} as {tensor.type}",
            f"export it as one of {', '.join(_EXPAND)}",
        )
    data = np.fromfile(header.path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
    return np.ascontiguousarray(expand(data), dtype=np.float32).reshape(-1)


def _scale(blocks: npt.NDArray[np.uint8], at: int) -> Floats:
    """The float16 at byte `at` of each block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: npt.NDArray[np.uint8]) -> Floats:
    """32 values of 4 bits a block: low halves first, then high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q8_0(data: npt.NDArray[np.uint8]) -> Floats:
    blocks = data.reshape(-1, 34)
    values: Floats = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * _scale(
        blocks, 0
    )
    return values


def _q4_0(data: npt.NDArray[np.uint8]) -> Floats:
    blocks = data.reshape(-1, 18)
    return (_nibbles(blocks[:, 2:]) - 8) * _scale(blocks, 0)


def _q4_1(data: npt.NDArray[np.uint8]) -> Floats:
    blocks = data.reshape(-1, 20)
    return _nibbles(blocks[:, 4:]) * _scale(blocks, 0) + _scale(blocks, 2)


_EXPAND: dict[str, Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]] = {
    "f32": lambda data: data.view(np.float32),
    "f16": lambda data: data.view(np.float16),
    "bf16": lambda data: (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
}
"""Block layouts of ggml's simple types: a float16 scale (and minimum), then 32 values."""
