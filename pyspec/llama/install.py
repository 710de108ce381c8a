"""`install`: makes libraries that build their own `llama_cpp.Llama` use drafts."""

from __future__ import annotations

from inspect import signature
from typing import Any

import llama_cpp

from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama

_defaults: dict[str, Any] | None = None


class InstalledLlama(SpeculativeLlama):
    """What `llama_cpp.Llama(...)` makes after `install`: the caller's arguments take precedence over those of `install`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.where_possible = "draft" not in kwargs  # an error only if a draft was named
        super().__init__(*args, **{**(_defaults or {}), **kwargs})


def _make(cls: type, *_args: object, **_kwargs: object) -> object:
    ours = cls is llama_cpp.Llama and _defaults is not None
    return object.__new__(InstalledLlama if ours else cls)


def install(**defaults: Any) -> None:
    """Make `llama_cpp.Llama(...)` return a `SpeculativeLlama`, also where the class was imported before.

    Existing objects and other subclasses stay as they are. Calling it again replaces the defaults.

    Args:
        **defaults: Arguments of `SpeculativeLlama` that a library does not pass itself, such as `draft` or `verification`.

    Raises:
        OptionError: `SpeculativeLlama` has no such argument.
    """
    global _defaults  # noqa: PLW0603 - the class exists once per process
    for name in defaults:
        if name not in signature(SpeculativeLlama.__init__).parameters:
            raise OptionError(
                f"SpeculativeLlama has no argument {name!r}", "see help(SpeculativeLlama)"
            )
    _defaults = defaults
    llama_cpp.Llama.__new__ = _make


def uninstall() -> None:
    """Make `llama_cpp.Llama(...)` return its own objects again."""
    global _defaults  # noqa: PLW0603 - as above
    _defaults = None
