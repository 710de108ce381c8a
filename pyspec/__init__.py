"""Speculative decoding with margin-aware acceptance and a companion model, on llama-cpp-python.

    from pyspec import SpeculativeLlama, Margin

    llm = SpeculativeLlama("target.gguf", verification=Margin(), n_ctx=4096)
    for chunk in llm.create_chat_completion(messages, stream=True): ...

The heavy names are imported when they are first used, so that `import pyspec` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspec._version import __version__, borrowed
from pyspec.errors import PyspecError
from pyspec.rules import Margin, Strict

if TYPE_CHECKING:
    from pyspec.batch import Batch
    from pyspec.drafters import Drafter, Proposal
    from pyspec.llama import (
        OFF,
        Piece,
        Speculation,
        SpeculativeLlama,
        stream_text,
    )
    from pyspec.replace import install, uninstall
    from pyspec.sampling import Sampling
    from pyspec.text.template import ChatTemplate, Message
    from pyspec.tokens import Source, Step, Token

_HOMES = {
    "Batch": "batch",
    "ChatTemplate": "text.template",
    "Drafter": "drafters",
    "Message": "text.template",
    "OFF": "llama",
    "Piece": "llama",
    "Proposal": "drafters",
    "Sampling": "sampling",
    "Source": "tokens",
    "Speculation": "llama",
    "SpeculativeLlama": "llama",
    "Step": "tokens",
    "Token": "tokens",
    "install": "replace",
    "stream_text": "llama",
    "uninstall": "replace",
}

__all__ = [
    "OFF",
    "Batch",
    "ChatTemplate",
    "Drafter",
    "Margin",
    "Message",
    "Piece",
    "Proposal",
    "PyspecError",
    "Sampling",
    "Source",
    "Speculation",
    "SpeculativeLlama",
    "Step",
    "Strict",
    "Token",
    "__version__",
    "install",
    "stream_text",
    "uninstall",
]


__path__ += borrowed(Path(__file__).parent, __path__)  # in a clone, the extension lies elsewhere


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pyspec' has no attribute {name!r}")
    return getattr(import_module(f"pyspec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
