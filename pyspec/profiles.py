"""What is known of a pair of models before its first round: a stored profile, or a prior from the files' types and sizes."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from pyspec._version import __version__
from pyspec.errors import ProfileError, PyspecError
from pyspec.policy.acceptance import Learned
from pyspec.policy.cost import CostCurve
from pyspec.policy.profile import Prior, ProfileKey, load_prior
from pyspec.policy.profile import load_profile as load_stored
from pyspec.policy.profile import save_prior as store_prior
from pyspec.store.cache import cache_dir, file_sha256

log = logging.getLogger("pyspec")


def profiles_dir() -> Path:
    """Where profiles lie in the cache. Not created here."""
    return cache_dir() / "profiles"


class Side(NamedTuple):
    """A draft or a companion: its file, and the bytes that a step of it reads."""

    path: Path
    size: int


def profile_key(llm: Any, sides: Sequence[Side]) -> ProfileKey:
    """The key of a loaded target with a draft and a companion, those that there are in this order."""
    draft, companion = _hashes(sides)
    offloaded = gpu_layers(llm)
    return ProfileKey(
        target=file_sha256(llm.model_path),
        draft=draft,
        companion=companion,
        backend=f"{platform.node()}, {platform.machine()}, {offloaded} layers on a GPU",
        threads=int(llm.n_threads),
        version=f"{__version__} on {llama_cpp.__version__}",
    )


def _hashes(sides: Sequence[Side]) -> tuple[str, str]:
    draft, companion = [*(file_sha256(side.path) for side in sides), "", ""][:2]
    return draft, companion


def load_profile(llm: Any, sides: Sequence[Side]) -> tuple[CostCurve, Learned] | None:
    """The measured curve and what was learned for these models on this machine, or None.

    A damaged or foreign file is one warning and None: then everything is learned anew.
    """
    if not profiles_dir().is_dir():
        return None
    try:
        profile = load_stored(profiles_dir(), profile_key(llm, sides))
        return profile.policy_parts() if profile is not None else None
    except ProfileError as error:
        log.warning("%s", error)
    except PyspecError as error:
        log.warning("no profile is used: %s", error)
    return None


def prior_learned(sides: Sequence[Side]) -> Learned:
    """A draft's acceptance before the first round: the prior beside its file, or nothing."""
    try:
        prior = load_prior(sides[0].path) if sides else None
        return prior.restore(*_hashes(sides)) if prior is not None else Learned()
    except ProfileError as error:
        log.warning("%s; what it says is learned anew", error.message)
        return Learned()


def save_prior(sides: Sequence[Side], learned: Learned) -> Path:
    """Write what was learned beside the draft, for those who get both; returns the path."""
    draft, companion = _hashes(sides)
    if not draft:
        raise ProfileError("there is no draft model to write a prior for", "name one with --draft")
    return store_prior(Prior.of(draft, companion, learned), sides[0].path)


_TYPES = {1: "BF16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 15: "Q4_K_M", 32: "BF16"}
"""llama.cpp's numbers of file types whose cost curve was measured. Others are taken for Q4_K_M, whose kernels take several
rows at once as those of its family do."""


def gpu_layers(llm: Any) -> int:
    """Layers asked to be on a GPU; 0 where this build of llama.cpp has none."""
    return int(llm.model_params.n_gpu_layers) if llama_cpp.llama_supports_gpu_offload() else 0


def prior_curve(llm: Any, sides: Sequence[Side]) -> CostCurve:
    """Where the cost curve starts: the shape of the target's file type, shares of a step by file size.

    The first rounds correct it; only ratios matter until then.
    """
    size = max(1, llama_cpp.llama_model_size(llm.model))
    shares = [max(0.02, side.size / size) for side in sides][:2]
    if gpu_layers(llm) != 0:
        return CostCurve.prior("metal" if sys.platform == "darwin" else "cuda", 10.0, *shares)
    shape = _TYPES.get(int(llm.metadata.get("general.file_type", -1)), "")
    return CostCurve.prior(shape, 10.0, *shares, depth_share=_depth_share(llm.model))


def _depth_share(model: Any) -> float:
    """What one position of context adds to a row on a CPU, in units of a row without context.

    Attention does 2 * n_layer * n_embd products a position where the weights do n_params. Measured on
    the 135M model in three file types it costs 1.4 to 2.3 times that share: Q4_1 +39 %, BF16 +43 %, Q4_K_M +59 %
    from 64 positions to 1024.
    """
    layers, width = llama_cpp.llama_model_n_layer(model), llama_cpp.llama_model_n_embd(model)
    return 3.2 * float(layers * width) / float(max(1, llama_cpp.llama_model_n_params(model)))
