"""Faster answers from GGUF models: speculative decoding on llama-cpp-python.

    from pyspec import SpeculativeLlama

    llm = SpeculativeLlama("smollm2-135m-instruct", n_ctx=4096)  # a name or a GGUF file
    messages = [{"role": "user", "content": "Name three rivers."}]
    for chunk in llm.create_chat_completion(messages, stream=True):
        print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
    print(llm.last_speculation.sentence)  # how fast it was, and what drafts did

`SpeculativeLlama` is a `llama_cpp.Llama` that drafts. `Batch` answers many prompts at once. `install()` makes libraries
that build their own `llama_cpp.Llama` use drafts. `Speculation`, `OFF`, `Strict` and `Margin` say how a call is drafted
for: the default, `Strict`, keeps the model's own text; `Margin` also accepts near misses. All errors are `PyspecError`s.

Names are imported when they are first used, so `import pyspec` is fast.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspec._version import borrowed

if TYPE_CHECKING:
    from pyspec._version import __version__
    from pyspec.batch import Batch
    from pyspec.draft.lookup import Drafter, Proposal
    from pyspec.errors import PyspecError
    from pyspec.llama.generation import stream_text
    from pyspec.llama.speculative import OFF, Speculation, SpeculativeLlama, install, uninstall
    from pyspec.sampling.options import Sampling
    from pyspec.sampling.verification import Margin, Strict
    from pyspec.text.messages import Message
    from pyspec.text.parts import Piece, Source, Step, Token
    from pyspec.text.template import ChatTemplate

_NAMES = {  # by the modules that have them
    "_version": ("__version__",),
    "batch": ("Batch",),
    "draft.lookup": ("Drafter", "Proposal"),
    "errors": ("PyspecError",),
    "llama.generation": ("stream_text",),
    "llama.speculative": ("OFF", "Speculation", "SpeculativeLlama", "install", "uninstall"),
    "sampling.options": ("Sampling",),
    "sampling.verification": ("Margin", "Strict"),
    "text.messages": ("Message",),
    "text.parts": ("Piece", "Source", "Step", "Token"),
    "text.template": ("ChatTemplate",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

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
