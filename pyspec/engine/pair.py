"""Tries a draft that reads a target's states before loading it, together with that target: its graph depends on both.

Where a head's sizes do not fit, llama.cpp asserts, reads out of bounds, or never ends; headers do not tell everything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspec.errors import ModelRejected
from pyspec.store.check import ships
from pyspec.store.files import recall, remember, show, stamp
from pyspec.store.heads import MTP, States
from pyspec.store.isolate import run_child
from pyspec.store.machine import engine_build, processor

_SCRIPT = Path(__file__).with_name("_pair.py")
_MAX_CONTEXT = 512
_SECONDS, _BASE_SECONDS = 3.0, 90.0
_BYTES_PER_SECOND = 20e6


def check_pair(draft: Path, target: Any, states: States) -> None:
    """Let a child process draft with this draft and target, on the CPU, once per version of the two files.

    Raises ModelRejected. Drafts that ship with pyspec and trusted targets are not tried.
    """
    if target.trust or (ships(draft) and not states.inside):
        return
    loading = target.loading
    at, of = stamp(draft), stamp(Path(target.model_path))
    kind = f"{states.kind} draft of {of}, {loading.what}, {processor()}, {engine_build()}"
    if recall(kind, at) == "works":
        return
    size = at.size + of.size
    options = {
        "n_ctx": min(target.n_ctx(), _MAX_CONTEXT),
        "n_threads": loading.n_threads,
        "flash_attn": loading.flash_attn,
        "extra_buffers": "on" if target.model_params.use_extra_bufts else "off",
        "type_k": loading.type_k,
        "type_v": loading.type_v,
        "kv_overrides": dict(loading.overrides) or None,
        "seconds": _SECONDS + size / _BYTES_PER_SECOND,
    }
    name = MTP if states.inside else str(draft.absolute())
    outcome = run_child(
        "draft",
        [str(target.model_path), name, json.dumps(options)],
        script=_SCRIPT,
        timeout=_BASE_SECONDS + size / _BYTES_PER_SECOND,
    )
    if not outcome.ok:
        raise ModelRejected(
            f"{show(draft.name)} failed its trial with {show(Path(of.realpath).name)}: {outcome.reason[:300]}",
            "use another draft, or --draft lookup",
            outcome.signal,
        )
    if (stamp(draft), stamp(Path(target.model_path))) == (at, of):
        remember(kind, at, "works")
