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
    n_batch: int | None = option("Engine", "-b", "--batch-size", metavar="N", type=click.IntRange(1, 1 << 20),
        help="Largest part of a prompt given to llama.cpp at once, tokens.")
    n_ubatch: int | None = option("Engine", "-ub", "--ubatch-size", metavar="N", type=click.IntRange(1, 1 << 20),
        help="Largest part that it computes at once, tokens.")
    n_threads_batch: int | None = option("Engine", "-tb", "--threads-batch", metavar="N",
        type=click.IntRange(1, 4096), help="Threads for reading prompts; if not given, as -t.")
    flash_attn: bool | str | None = option("Engine", "-fa", "--flash-attn", metavar="on|off|auto",
        type=CodedChoice(_ON_OFF), help="Flash attention; if not given, auto: what is measured to be faster here.")
    type_k: int | None = option("Engine", "-ctk", "--cache-type-k", type=_CACHE, metavar="TYPE",
        help=f"Type of the target's K cache: {', '.join(_CACHE_TYPES)}.")
    type_v: int | None = option("Engine", "-ctv", "--cache-type-v", type=_CACHE, metavar="TYPE",
        help="Type of the target's V cache; a quantised one needs -fa on.")
    draft_type_k: int | None = option("Engine", "-ctkd", "--cache-type-k-draft", type=_CACHE, metavar="TYPE",
        help="The same for draft and companion; if not given, f16.")
    draft_type_v: int | None = option("Engine", "-ctvd", "--cache-type-v-draft", type=_CACHE, metavar="TYPE",
        help="The same for draft and companion; if not given, f16.")
    offload_kqv: bool | None = option("Engine", "-nkvo", "--no-kv-offload", is_flag=True, flag_value=False,
        default=None, help="Keep the KV cache in main memory even when layers are on a GPU.")
    use_mmap: bool | None = option("Engine", "--no-mmap", is_flag=True, flag_value=False, default=None,
        help="Read the model into memory instead of mapping the file.")
    use_mlock: bool | None = option("Engine", "--mlock", is_flag=True, default=None,
        help="Lock the model in memory, so that it is not swapped out.")
    split_mode: int | None = option("Engine", "-sm", "--split-mode", type=CodedChoice({"none": 0, "layer": 1, "row": 2}),
        help="How to split the model over several GPUs.")
    main_gpu: int | None = option("Engine", "-mg", "--main-gpu", metavar="N", type=click.IntRange(min=0),
        help="The GPU for whatever is not split.")
    tensor_split: list[float] | None = option("Engine", "-ts", "--tensor-split", metavar="N,N,..", type=_shares,
        help="Each GPU's share of the model, such as 3,1.")
    rope_scaling_type: int | None = option("Engine", "--rope-scaling",
        type=CodedChoice({"none": 0, "linear": 1, "yarn": 2}),
        help="How to scale positions; if not given, as the model says.")
    rope_freq_base: float | None = option("Engine", "--rope-freq-base", metavar="F", type=click.FloatRange(min=0.0),
        help="Base frequency of RoPE.")
    rope_freq_scale: float | None = option("Engine", "--rope-freq-scale", metavar="F", type=click.FloatRange(min=0.0),
        help="Factor of RoPE's frequencies.")
    yarn_orig_ctx: int | None = option("Engine", "--yarn-orig-ctx", metavar="N", type=click.IntRange(min=0),
        help="YaRN: the context the model was trained for.")
    yarn_ext_factor: float | None = option("Engine", "--yarn-ext-factor", metavar="F", type=float,
        help="YaRN: extrapolation mix.")
    yarn_attn_factor: float | None = option("Engine", "--yarn-attn-factor", metavar="F", type=float,
        help="YaRN: attention scale.")
    yarn_beta_slow: float | None = option("Engine", "--yarn-beta-slow", metavar="F", type=float,
        help="YaRN: high correction dim.")
    yarn_beta_fast: float | None = option("Engine", "--yarn-beta-fast", metavar="F", type=float,
        help="YaRN: low correction dim.")
    kv_overrides: tuple[tuple[str, Any], ...] = option("Engine", "--override-kv", metavar="KEY=TYPE:VALUE",
        multiple=True, type=_override,
        help="Replace a value of the model's metadata; TYPE is int, float, bool or str.")
    lora_path: Path | None = option("Engine", "--lora", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
        help="Apply a LoRA adapter (GGUF) to the target.")
    lora_scale: float | None = option("Engine", "--lora-scale", metavar="F", type=float,
        help="Strength of the adapter; if not given, 1.")
    verbose: bool = option("Engine", "-v", "--verbose", is_flag=True, help="Show llama.cpp's own log lines.")
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

    from pyspec.store.llama_log import DROP  # noqa: PLC0415

    llama_cpp.llama_log_set(_shown() if verbose else DROP, ctypes.c_void_p(0))


@cache  # llama.cpp keeps its address
def _shown() -> Any:
    import llama_cpp  # noqa: PLC0415 - as above

    return llama_cpp.llama_log_callback(_show)


def _show(_level: int, text: bytes, _data: Any) -> None:
    sys.stderr.write(safe(text.decode("utf-8", "replace")))
    sys.stderr.flush()
