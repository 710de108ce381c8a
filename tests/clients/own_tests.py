"""A pytest plugin for llama-cpp-python's own tests: models from this disk, and our class in place of theirs if asked.

PYSPEC_OWN_MODELS: a folder with llama.gguf and hybrid.gguf. PYSPEC_OWN_CLASS: "ours" or "theirs".
"""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub
import pytest
from helpers import amx

STAND_INS = {"falcon-h1": "hybrid.gguf"}


def _here(repo: str, _file: str, **_: object) -> str:
    # an encoder, and a recurrent model: for one that cannot go back ours refuses a draft that is named
    if any(kind in repo.lower() for kind in ("bge", "mamba")):
        pytest.skip(f"no stand-in for {repo}")
    names = [name for kind, name in STAND_INS.items() if kind in repo.lower()]
    return str(Path(os.environ["PYSPEC_OWN_MODELS"]) / (names[0] if names else "llama.gguf"))


huggingface_hub.hf_hub_download = _here
amx.leave_extra_off()

if os.environ["PYSPEC_OWN_CLASS"] == "ours":
    import pyspec

    pyspec.install(draft="lookup", companion="none", length="fixed:4")
