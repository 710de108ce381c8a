"""A pytest plugin for llama-cpp-python's own tests: models from this disk, and our class in place of theirs if asked.

PYSPEC_OWN_MODELS: a folder with llama.gguf and recurrent.gguf. PYSPEC_OWN_CLASS: "ours" or "theirs".
"""

from __future__ import annotations

import os
from pathlib import Path

import amx
import huggingface_hub
import pytest


def _here(repo: str, _file: str, **_: object) -> str:
    if "bge" in repo or "Falcon-H1" in repo:  # an encoder and a hybrid
        pytest.skip(f"no stand-in for {repo}")
    kind = "recurrent" if "mamba" in repo.lower() else "llama"
    return str(Path(os.environ["PYSPEC_OWN_MODELS"]) / f"{kind}.gguf")


huggingface_hub.hf_hub_download = _here
amx.leave_extra_off()

if os.environ["PYSPEC_OWN_CLASS"] == "ours":
    import pyspec

    pyspec.install(draft="lookup", companion="none", length="fixed:4")
