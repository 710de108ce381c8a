"""A pytest plugin for llama-cpp-python's own tests: models from this disk, and our class in place of theirs if asked.

PYSPEC_OWN_MODELS: a folder with llama.gguf. PYSPEC_OWN_CLASS: "ours" or "theirs".
"""

from __future__ import annotations

import os
from pathlib import Path

import amx
import huggingface_hub
import pytest


def _here(repo: str, _file: str, **_: object) -> str:
    # an encoder, a hybrid, and a recurrent model that spells text: the tiny one's vocabulary ends their class
    if any(kind in repo.lower() for kind in ("bge", "falcon-h1", "mamba")):
        pytest.skip(f"no stand-in for {repo}")
    return str(Path(os.environ["PYSPEC_OWN_MODELS"]) / "llama.gguf")


huggingface_hub.hf_hub_download = _here
amx.leave_extra_off()

if os.environ["PYSPEC_OWN_CLASS"] == "ours":
    import pyspec

    pyspec.install(draft="lookup", companion="none", length="fixed:4")
