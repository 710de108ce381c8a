"""`llama_cpp.Llama` made ours, for libraries that build their own."""

from __future__ import annotations

from typing import Any

import llama_cpp

from pyspec.llama import SpeculativeLlama

_defaults: dict[str, Any] | None = None


class InstalledLlama(SpeculativeLlama):
    """What `llama_cpp.Llama(...)` makes after `install`: what the caller says, then what `install` was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.where_possible = "draft" not in kwargs  # else a model that can have none is an error
        super().__init__(*args, **{**(_defaults or {}), **kwargs})


def _make(cls: type, *_args: object, **_kwargs: object) -> object:
    ours = cls is llama_cpp.Llama and _defaults is not None
    return object.__new__(InstalledLlama if ours else cls)


def install(**defaults: Any) -> None:
    """Let `llama_cpp.Llama(...)` make `SpeculativeLlama`s, wherever that class was imported already.

    defaults: arguments of `SpeculativeLlama` for what a library does not say itself, such as `draft` or `verification`.
        Answers wait for each other (`wait=True`), since libraries call from several threads.
    Objects that exist stay what they are; subclasses of others do, too. Calling it again replaces the defaults.
    """
    global _defaults  # noqa: PLW0603 - the class is one for the whole process, too
    _defaults = {"wait": True, **defaults}
    llama_cpp.Llama.__new__ = _make


def uninstall() -> None:
    """Let `llama_cpp.Llama(...)` make its own objects again."""
    global _defaults  # noqa: PLW0603 - as above
    _defaults = None
