"""llama.cpp's own options, under llama.cpp's names, and its log."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from pyspec.cli.command import option
from pyspec.errors import OptionError
from pyspec.sampling.limits import KV_TYPES
from pyspec.screen.words import safe


class CodedChoice(click.Choice):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A choice of words, each with the value that llama.cpp uses."""

    def __init__(self, codes: Mapping[str, Any]) -> None:
        super().__init__(list(codes), case_sensitive=False)
        self.codes = codes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return self.codes[super().convert(value, param, ctx)]


def _shares(text: str) -> list[float]:
    shares = [float(part) for part in text.replace("/", ",").split(",")]
    if min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise OptionError(f"--tensor-split {text} is not a list of shares", "write them as 3,1")
    return shares


_BOOLS = {"true": True, "false": False}
_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": _BOOLS.__getitem__,
}


def _override(text: str) -> tuple[str, Any]:
    key, _, typed = text.partition("=")
    kind, _, value = typed.partition(":")
    try:
        return key, _KINDS[kind](value)
    except (KeyError, ValueError):
        hint = "write it as KEY=int:8, with int, float, bool or str"
        raise OptionError(f"cannot read --override-kv {text}", hint) from None


_CACHE_TYPES = {kind.lower(): number for number, kind in KV_TYPES.items()}

_CACHE = CodedChoice(_CACHE_TYPES)
_ON_OFF = {"on": True, "off": False, "auto": "auto", "1": True, "0": False, **_BOOLS}


@dataclass(frozen=True)
class EngineOptions:
    """How llama.cpp runs; each option has llama.cpp's name."""

    # fmt: off
    flash_attn: bool | str | None = option("Machine", "-fa", "--flash-attn", metavar="on|off|auto",
        type=CodedChoice(_ON_OFF), help="Flash attention; if not given, what is faster here.")
    verbose: bool = option("Machine", "-v", "--verbose", is_flag=True, help="Show llama.cpp's own log lines.")
    n_batch: int | None = option("Machine", "-b", "--batch-size", metavar="N", type=click.IntRange(1, 1 << 20))
    n_ubatch: int | None = option("Machine", "-ub", "--ubatch-size", metavar="N", type=click.IntRange(1, 1 << 20))
    n_threads_batch: int | None = option("Machine", "-tb", "--threads-batch", metavar="N", type=click.IntRange(1, 4096))
    type_k: int | None = option("Machine", "-ctk", "--cache-type-k", type=_CACHE, metavar="TYPE")
    type_v: int | None = option("Machine", "-ctv", "--cache-type-v", type=_CACHE, metavar="TYPE")
    draft_type_k: int | None = option("Machine", "-ctkd", "--cache-type-k-draft", type=_CACHE, metavar="TYPE")
    draft_type_v: int | None = option("Machine", "-ctvd", "--cache-type-v-draft", type=_CACHE, metavar="TYPE")
    offload_kqv: bool | None = option("Machine", "-nkvo", "--no-kv-offload", is_flag=True, flag_value=False, default=None)
    use_mmap: bool | None = option("Machine", "--no-mmap", is_flag=True, flag_value=False, default=None)
    use_mlock: bool | None = option("Machine", "--mlock", is_flag=True, default=None)
    split_mode: int | None = option("Machine", "-sm", "--split-mode", metavar="none|layer|row",
        type=CodedChoice({"none": 0, "layer": 1, "row": 2}))
    main_gpu: int | None = option("Machine", "-mg", "--main-gpu", metavar="N", type=click.IntRange(min=0))
    tensor_split: list[float] | None = option("Machine", "-ts", "--tensor-split", metavar="N,N,..", type=_shares)
    rope_scaling_type: int | None = option("Machine", "--rope-scaling", metavar="none|linear|yarn",
        type=CodedChoice({"none": 0, "linear": 1, "yarn": 2}))
    rope_freq_base: float | None = option("Machine", "--rope-freq-base", type=click.FloatRange(min=0.0))
    rope_freq_scale: float | None = option("Machine", "--rope-freq-scale", type=click.FloatRange(min=0.0))
    yarn_orig_ctx: int | None = option("Machine", "--yarn-orig-ctx", metavar="N", type=click.IntRange(min=0))
    kv_overrides: tuple[tuple[str, Any], ...] = option("Machine", "--override-kv", metavar="KEY=TYPE:VALUE",
        multiple=True, type=_override)
    lora_path: Path | None = option("Machine", "--lora", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
    lora_scale: float | None = option("Machine", "--lora-scale", type=float)
    # fmt: on

    @property
    def arguments(self) -> dict[str, Any]:
        """The given options as keyword arguments of `SpeculativeLlama` and `Batch`. Raises OptionError."""
        arguments = {name: value for name, value in vars(self).items() if value is not None}
        del arguments["verbose"]
        if overrides := dict(arguments.pop("kv_overrides")):
            arguments["kv_overrides"] = overrides
        if "lora_path" in arguments:
            arguments["lora_path"] = str(arguments["lora_path"])
        if arguments.get("type_v") not in (None, 0, 1, 30) and arguments.get("flash_attn") is False:
            raise OptionError(
                "a quantised V cache (-ctv) needs flash attention", "leave out -fa off"
            )
        if arguments.get("n_ubatch", 0) > (most := arguments.get("n_batch", 512)):
            raise OptionError(
                f"-ub {arguments['n_ubatch']} is larger than -b {most}", "raise -b as well"
            )
        return arguments


def hush_llama(verbose: bool) -> None:
    """Drop llama.cpp's log lines, or show them on stderr.

    They would mislead: a cancelled answer makes llama.cpp log errors, and pyspec reports real errors itself.
    """
    import ctypes  # noqa: PLC0415 - --help needs none of these

    import llama_cpp  # noqa: PLC0415

    from pyspec._lib import DROP  # noqa: PLC0415

    llama_cpp.llama_log_set(_shown() if verbose else DROP, ctypes.c_void_p(0))


@cache  # llama.cpp keeps its address
def _shown() -> Any:
    import llama_cpp  # noqa: PLC0415 - as above

    return llama_cpp.llama_log_callback(_show)


def _show(_level: int, text: bytes, _data: Any) -> None:
    sys.stderr.write(safe(text.decode("utf-8", "replace")))
    sys.stderr.flush()
