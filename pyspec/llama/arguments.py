"""The arguments of methods that llama-cpp-python's `Llama` has too: which go there, which it lacks, and which file is meant."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspec.hub.locate import resolve
from pyspec.llama.options import MORE_SAMPLERS
from pyspec.sampling.chain import Sampling
from pyspec.screen.progress import store_progress

_Method = TypeVar("_Method", bound=Callable[..., Any])
_NOT_ITS = {"self", "speculation", "chat_template_kwargs", "__class__", *MORE_SAMPLERS}


def arguments_for_llama(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method by name, from its locals(): they go to llama-cpp-python under the same names."""
    return {k: v for k, v in arguments.items() if k not in _NOT_ITS}


def more_samplers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler arguments that llama-cpp-python lacks and that differ from their defaults."""
    values = {name: arguments[name] for name in MORE_SAMPLERS}
    return {name: each for name, each in values.items() if each != getattr(Sampling, name)}


def signed_like(method: _Method) -> Callable[[Callable[..., Any]], _Method]:
    """Give a function the signature of `method`, for editors, type checkers and `inspect`."""
    like: Any = wraps(method, assigned=(), updated=())
    return cast("Callable[[Callable[..., Any]], _Method]", like)


def file_of(model: str | os.PathLike[str]) -> str:
    """The file for a path or a name; raises ModelNotFound if it is neither."""
    if Path(model).exists():
        return str(model)
    with store_progress() as progress:
        return str(resolve(model, progress))
