"""Speculative decoding with margin-aware acceptance and a companion model, on llama-cpp-python.

    from pyspec import SpeculativeLlama, Margin

    llm = SpeculativeLlama("target.gguf", verification=Margin(), n_ctx=4096)
    for chunk in llm.create_chat_completion(messages, stream=True): ...

The heavy names are imported when they are first used, so that `import pyspec` costs nothing.

`pip install .` puts the compiled extension among the installed packages, while `python` started in the clone imports the folder
`pyspec` beside it, which has none: what a build makes is then borrowed from the installed package of the same version. An
editable installation (`pip install -e .`) needs none of this.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        install,
        stream_text,
        uninstall,
    )
    from pyspec.sampling import Sampling
    from pyspec.text import ChatTemplate, Message
    from pyspec.tokens import Source, Step, Token

_HOMES = {
    "Batch": "batch",
    "ChatTemplate": "text",
    "Drafter": "drafters",
    "Message": "text",
    "OFF": "llama",
    "Piece": "llama",
    "Proposal": "drafters",
    "Sampling": "sampling",
    "Source": "tokens",
    "Speculation": "llama",
    "SpeculativeLlama": "llama",
    "Step": "tokens",
    "Token": "tokens",
    "install": "llama",
    "stream_text": "llama",
    "uninstall": "llama",
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


def _installed() -> tuple[str, str]:
    """Version and folder of the installed package; empty where there is none."""
    try:
        found = distribution("pyspec-llama")
    except PackageNotFoundError:
        return "", ""
    return found.version, str(found.locate_file("pyspec"))


def _borrowed(package: Path, search: list[str]) -> list[str]:
    """Folders to add to the package's path `search` so that a clone is whole: its `models`, and the installed extension.

    package: the folder that `pyspec` was imported from. Empty for an installed package, and where `search` is whole already.
    """
    root = package.parent
    if not (root / "native" / "CMakeLists.txt").is_file() or any(map(_has_extension, search)):
        return []
    version, folder = _installed()
    same = version == _stated(root) and _has_extension(folder)
    return [str(root), folder] if same else [str(root)]


def _has_extension(folder: str) -> bool:
    return any((Path(folder) / f"_native{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)


def _stated(root: Path) -> str:
    """The version of the sources of a clone."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    line = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    return line[1] if line else ""


_HERE = Path(__file__).parent
# a clone that was never installed says what it lacks where it is needed
__version__ = _installed()[0] or _stated(_HERE.parent)
__path__ += _borrowed(_HERE, __path__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pyspec' has no attribute {name!r}")
    return getattr(import_module(f"pyspec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
