"""Places single tensors apart from their layers: for `--n-cpu-moe`, `--override-tensor` and `-ngl auto`.

Experts are most of a mixture's weights, and a token uses few of them. In main memory they cost little speed, and leave the
devices to attention and to the weights that every token uses.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from pyspec.draft.costs import Experts
from pyspec.errors import OptionError
from pyspec.gguf.header import EXPERTS, header_of_parts, read_header
from pyspec.gguf.reader import Header
from pyspec.machine.devices import CPU, buffer_type, placeable_names
from pyspec.machine.others import file_name_of

MAX_PATTERN = 256

Overrides: TypeAlias = "str | Mapping[str, str] | Iterable[tuple[str, str]]"
"""Patterns and devices: `PATTERN=DEVICE,..`, a mapping, or pairs."""


class _Override(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True)
class TensorPlaces:
    """The devices of single tensors. pairs: regular expressions for names, each with a device; the first that matches counts.

    experts: in how many layers, from the first on, experts stay in main memory; -1 for all. `pairs` take precedence.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    experts: int = 0

    def __bool__(self) -> bool:
        return bool(self.pairs or self.experts)

    @cached_property
    def all(self) -> tuple[tuple[str, str], ...]:
        """All pairs, the experts' last."""
        if self.experts < 0:
            return (*self.pairs, (EXPERTS.pattern, CPU))
        return (*self.pairs, *((rf"blk\.{i}{EXPERTS.pattern}", CPU) for i in range(self.experts)))

    def place_of(self, name: str) -> str | None:
        """Return the device of the tensor of this name; None if its layer decides."""
        return next((place for pattern, place in self.all if re.search(pattern, name)), None)

    def array(self) -> Any:
        """Return llama.cpp's array of overrides; None if there are none. It must outlive every load that uses it."""
        if not self:
            return None
        made = (_Override * (len(self.all) + 1))()  # llama.cpp stops at one without a pattern
        for each, (pattern, place) in zip(made, self.all):
            each.pattern, each.buft = pattern.encode(), buffer_type(place)
        return made

    def __str__(self) -> str:
        words = []
        if self.experts:
            layers = "all layers" if self.experts < 0 else f"{self.experts} layers"
            words.append(f"experts of {layers} in main memory")
        if self.pairs:
            words.append(f"{', '.join(pattern for pattern, _ in self.pairs)} as asked")
        return "; ".join(words)


def tensor_places(
    experts: int, overrides: Overrides | None, path: Path | None = None
) -> TensorPlaces:
    """Parse the options `n_cpu_moe` and `override_tensor`. path: the model's file, if known.

    Raises OptionError for an invalid pattern, an unknown device, or experts that the file lacks.
    """
    if experts and path is not None:
        refuse_lacking_experts(read_header(path))
    if isinstance(experts, bool) or not isinstance(experts, int) or experts < -1:
        raise OptionError(f"n_cpu_moe is {experts!r}", "use a number of layers, or -1 for all")
    return TensorPlaces(tuple(_pairs(overrides or ())), min(experts, 512))


def _pairs(overrides: Overrides) -> Iterator[tuple[str, str]]:
    if isinstance(overrides, str):
        parts = [part for part in overrides.split(",") if part.strip()]
        pairs: Iterable[tuple[str, str]] = (_split(part) for part in parts)
    else:
        pairs = overrides.items() if isinstance(overrides, Mapping) else overrides
    known = placeable_names()
    for pattern, device in pairs:
        _check_pattern(pattern)
        if device.lower() not in known:
            there = ", ".join(dict.fromkeys(known.values()))
            raise OptionError(f"there is no device {device[:40]!r} for {pattern}", f"use {there}")
        yield pattern, known[device.lower()]


def _split(part: str) -> tuple[str, str]:
    pattern, is_there, device = part.strip().rpartition("=")
    if not is_there or not pattern:
        raise OptionError(
            f"cannot read the override {part[:80]!r}",
            "write it as PATTERN=DEVICE, such as exps=CPU",
        )
    return pattern, device.strip()


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        hint = "use a regular expression, such as ffn_.*_exps"
        raise OptionError(f"the pattern {pattern[:80]!r} cannot be read: {error}", hint) from None
    if len(pattern) > MAX_PATTERN or "\0" in pattern:
        raise OptionError(
            f"the pattern {pattern[:40]!r} cannot be used", f"use at most {MAX_PATTERN} letters"
        )


def has_experts(header: Header) -> bool:
    """Whether a file is a mixture of experts."""
    return any(EXPERTS.search(tensor.name) for tensor in header.tensors)


def experts_of(llm: Any) -> tuple[Experts, int] | None:
    """Return a mixture's experts, and the bytes of weights that a row reads; None for other models."""
    arch = llm.metadata.get("general.architecture", "")
    count, used = (
        int(llm.metadata.get(f"{arch}.expert_{what}", 0)) for what in ("count", "used_count")
    )
    if not 0 < used < count:
        return None
    experts = others = 0
    for tensor in header_of_parts(Path(llm.model_path)).tensors:
        if EXPERTS.search(tensor.name):
            experts += tensor.nbytes
        elif tensor.name != "token_embd.weight":
            others += tensor.nbytes
    own = experts * used // count
    return Experts(count, used, own / max(1, own + others)), max(1, own + others)


def refuse_lacking_experts(header: Header) -> None:
    """Raise OptionError if a file whose experts are to stay in main memory has none."""
    if not has_experts(header):
        raise OptionError(
            f"{file_name_of(header.path)} is no mixture of experts, so there are none to keep in main memory",
            "leave out --n-cpu-moe and --cpu-moe",
        )
