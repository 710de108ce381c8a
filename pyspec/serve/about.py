"""Descriptions of the served models for clients of ollama."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspec._version import __version__
from pyspec.batch.run import Batch
from pyspec.gguf.header import facts_of
from pyspec.machine.files import known_sha256
from pyspec.serve.tokenizing import tokenizer_info
from pyspec.text.answer import Speech

OLLAMA_VERSION = "0.12.6"
"""The version of ollama whose API is served: clients check it before they use newer features."""

_FOREVER = "2318-01-01T00:00:00Z"


def version() -> dict[str, Any]:
    """The version of the API, and of this package."""
    return {"version": OLLAMA_VERSION, "pyspec": __version__}


def tags(named: Iterable[tuple[str, Batch | None]]) -> dict[str, Any]:
    """The models that requests may name. Of a model that is not loaded, only the name is known."""
    return {"models": [_entry(name, batch) for name, batch in named]}


def loaded(named: Iterable[tuple[str, Batch]]) -> dict[str, Any]:
    return {
        "models": [
            {**_entry(name, batch), "expires_at": _FOREVER, "size_vram": 0, "context_length": batch.facts["n_ctx"]}
            for name, batch in named
        ]
    }  # fmt: skip


def _entry(name: str, batch: Batch | None) -> dict[str, Any]:
    path = None if batch is None else Path(batch.target.model_path)
    digest = "" if path is None else known_sha256(path)
    moment = datetime.fromtimestamp(0 if path is None else path.stat().st_mtime, timezone.utc)
    return {
        "name": name,
        "model": name,
        "modified_at": moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "size": 0 if batch is None else batch.facts["size"],
        "digest": digest,
        "details": _details(batch),
    }


def _details(batch: Batch | None) -> dict[str, Any]:
    facts = None if batch is None else facts_of(Path(batch.target.model_path))
    family = facts.architecture if facts else ""
    n_params = 0 if batch is None else batch.facts["n_params"]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.1f}M",
        "quantization_level": facts.type if facts else "",
    }


def describe_model(batch: Batch) -> dict[str, Any]:
    """A model's template, sampling, metadata and capabilities."""
    speech, template = Speech.of(batch.target), tokenizer_info(batch)["chat_template"] or ""
    can = ["completion"]
    can += ["tools"] if "tools" in template else []
    can += ["thinking"] if speech.notation.reasoning or speech.notation.channels else []
    metadata = batch.target.metadata
    known = {
        key: _number(value)
        for key, value in metadata.items()
        if not key.startswith("tokenizer.chat")
    }
    sampling = batch.settings.sampling
    return {
        "modelfile": "",
        "parameters": f"temperature {sampling.temperature:g}\ntop_k {sampling.top_k}\ntop_p {sampling.top_p:g}",
        "template": template,
        "details": _details(batch),
        "model_info": {**known, "general.parameter_count": batch.facts["n_params"]},
        "capabilities": can,
    }


def _number(text: str) -> int | float | str:
    """A value of the metadata, which llama.cpp returns as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[:1000]
