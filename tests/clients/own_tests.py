"""A pytest plugin for llama-cpp-python's own tests: models from this disk, and our class in place of theirs if asked.

PYSPEC_OWN_MODELS: a folder with the stand-ins. PYSPEC_OWN_WAY: "theirs", or "class" or "install" and what ours drafts with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import huggingface_hub
import llama_cpp
from helpers import amx
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import pyspec

STAND_INS = {"falcon-h1": "hybrid", "mamba": "recurrent", "bge": "encoder"}


def _here(repo: str, _file: str, **_: object) -> str:
    names = [name for kind, name in STAND_INS.items() if kind in repo.lower()]
    return str(Path(os.environ["PYSPEC_OWN_MODELS"], f"{(names or ['llama'])[0]}.gguf"))


huggingface_hub.hf_hub_download = _here
amx.leave_extra_off()

way, _, draft = os.environ["PYSPEC_OWN_WAY"].partition(" ")
own = {"draft": draft, "companion": "none", "length": "fixed:4"}
if draft == "theirs":
    own["draft"] = LlamaPromptLookupDecoding()
if way == "install":
    pyspec.install(**own)
elif way == "class":

    class Ours(pyspec.SpeculativeLlama):
        """With what was asked for; a draft that is named is refused where memory cannot be rolled back."""

        def __init__(self, model_path: str, **options: Any) -> None:
            named = {"draft": "auto"} if "recurrent" in model_path else {}
            super().__init__(model_path, **{**own, **named, **options})

    llama_cpp.Llama = Ours
