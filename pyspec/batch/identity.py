"""The identity of a batch: all that its answers depend on. A journal is only continued by a batch with the same identity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspec._version import __version__
from pyspec.batch.contexts import Models
from pyspec.batch.maker import Settings
from pyspec.store.files import file_sha256

_TEXT_OPTIONS = (
    "flash_attn", "type_k", "type_v", "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "kv_overrides", "swa_full", "lora_scale",
    "chat_template", "template_args",
)  # fmt: skip


def changing_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of llama.cpp and the template that are set and change answers."""
    found = {name: options[name] for name in _TEXT_OPTIONS if options.get(name) not in (None, {})}
    if adapter := options.get("lora_path"):
        found["lora"] = file_sha256(Path(adapter))
    return found


def identity_of(models: Models, settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Version, hashes of models, default settings, and options of the batch."""
    rule = {"name": settings.rule.name, **getattr(settings.rule, "__dict__", {})}
    sampling = dict(vars(settings.sampling))
    del sampling["chance"]
    if sampling["noise"] == "auto":  # a batch has a seed
        sampling["noise"] = "coupled"
    return {
        "pyspec": __version__,
        **{role: file_sha256(path) for role, path in models.files.items()},
        "drafter": getattr(models.parts.drafter, "name", "none"),
        "verification": {key: str(value) for key, value in rule.items()},
        "sampling": {key: str(value) for key, value in sampling.items()},
        "max_tokens": settings.max_tokens,
        "system": settings.system,
        "stop": list(settings.stop),
        "raw": settings.raw,
        **({} if settings.reasoning_budget is None else {"budget": settings.reasoning_budget}),
        **options,
    }
