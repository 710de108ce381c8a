"""llama.cpp from the command line: its engine options by its names, its log lines, and `pyspec info`, what this build can do."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import click
import llama_cpp

from pyspec._version import __version__
from pyspec.cli.command import Subcommand, gathered, option
from pyspec.errors import OptionError
from pyspec.store.cache import cache_dir
from pyspec.store.machine import default_threads, extra_buffers_known, has_amx

_CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}
"""Types of KV caches, with ggml's numbers."""

_SPLITS = {"none": 0, "layer": 1, "row": 2}
_ROPES = {"none": 0, "linear": 1, "yarn": 2}
_CACHE = click.Choice(list(_CACHE_TYPES), case_sensitive=False)
_ON_OFF = ("on", "off", "auto", "1", "0", "true", "false")

engine_options = gathered(
    "engine", dict,
    option("-b", "--batch-size", group="Engine", metavar="N", type=click.IntRange(1, 1 << 20),
           help="Most tokens of a prompt given to llama.cpp at once."),
    option("-ub", "--ubatch-size", group="Engine", metavar="N", type=click.IntRange(1, 1 << 20),
           help="Most tokens it computes at once."),
    option("-tb", "--threads-batch", group="Engine", metavar="N", type=click.IntRange(1, 4096),
           help="Threads while a prompt is read; as -t if not given."),
    option("-fa", "--flash-attn", group="Engine", metavar="[on|off|auto]", words=_ON_OFF,
           type=click.Choice(_ON_OFF), help="Flash attention; on if not given."),
    option("-ctk", "--cache-type-k", group="Engine", type=_CACHE, metavar="TYPE",
           help=f"Type of the target's K cache: {', '.join(_CACHE_TYPES)}."),
    option("-ctv", "--cache-type-v", group="Engine", type=_CACHE, metavar="TYPE",
           help="Type of its V cache; a quantised one needs -fa on."),
    option("-ctkd", "--cache-type-k-draft", group="Engine", type=_CACHE, metavar="TYPE",
           help="The same for draft and companion."),
    option("-ctvd", "--cache-type-v-draft", group="Engine", type=_CACHE, metavar="TYPE",
           help="The same for draft and companion."),
    option("-nkvo", "--no-kv-offload", group="Engine", is_flag=True,
           help="Keep the KV cache in main memory when layers are on a GPU."),
    option("--no-mmap", group="Engine", is_flag=True, help="Read the model into memory instead of mapping it."),
    option("--mlock", group="Engine", is_flag=True, help="Keep the model in memory: no swapping."),
    option("-sm", "--split-mode", group="Engine", type=click.Choice(list(_SPLITS)),
           help="How several GPUs share the model."),
    option("-mg", "--main-gpu", group="Engine", metavar="N", type=click.IntRange(min=0),
           help="The GPU for what is not shared."),
    option("-ts", "--tensor-split", group="Engine", metavar="N,N,..", help="Share of each GPU, such as 3,1."),
    option("--rope-scaling", group="Engine", type=click.Choice(list(_ROPES)),
           help="How positions are stretched; as the model says if not given."),
    option("--rope-freq-base", group="Engine", metavar="F", type=click.FloatRange(min=0.0),
           help="Base frequency of RoPE."),
    option("--rope-freq-scale", group="Engine", metavar="F", type=click.FloatRange(min=0.0),
           help="Factor of RoPE's frequencies."),
    option("--yarn-orig-ctx", group="Engine", metavar="N", type=click.IntRange(min=0),
           help="YaRN: the context the model was trained for."),
    option("--yarn-ext-factor", group="Engine", metavar="F", type=float, help="YaRN: extrapolation mix."),
    option("--yarn-attn-factor", group="Engine", metavar="F", type=float, help="YaRN: attention scale."),
    option("--yarn-beta-slow", group="Engine", metavar="F", type=float, help="YaRN: high correction dim."),
    option("--yarn-beta-fast", group="Engine", metavar="F", type=float, help="YaRN: low correction dim."),
    option("--override-kv", group="Engine", metavar="KEY=TYPE:VALUE", multiple=True,
           help="Replace a value of the model's metadata; TYPE is int, float, bool or str."),
    option("-v", "--verbose", group="Engine", is_flag=True, help="Show llama.cpp's own log lines."),
)  # fmt: skip
"""How llama.cpp runs, each by the name it has there: `engine` of the command."""

_PLAIN = {
    "batch_size": "n_batch", "ubatch_size": "n_ubatch", "threads_batch": "n_threads_batch", "main_gpu": "main_gpu",
    "rope_freq_base": "rope_freq_base", "rope_freq_scale": "rope_freq_scale", "yarn_orig_ctx": "yarn_orig_ctx",
    "yarn_ext_factor": "yarn_ext_factor", "yarn_attn_factor": "yarn_attn_factor",
    "yarn_beta_slow": "yarn_beta_slow", "yarn_beta_fast": "yarn_beta_fast",
}  # fmt: skip
_CODED: dict[str, tuple[str, Mapping[str, int]]] = {
    "cache_type_k": ("type_k", _CACHE_TYPES), "cache_type_v": ("type_v", _CACHE_TYPES),
    "cache_type_k_draft": ("draft_type_k", _CACHE_TYPES), "cache_type_v_draft": ("draft_type_v", _CACHE_TYPES),
    "split_mode": ("split_mode", _SPLITS), "rope_scaling": ("rope_scaling_type", _ROPES),
}  # fmt: skip

_FLAGS = {
    "no_kv_offload": ("offload_kqv", False),
    "no_mmap": ("use_mmap", False),
    "mlock": ("use_mlock", True),
}


def engine_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `SpeculativeLlama` for the options that were given. Raises OptionError."""
    made: dict[str, Any] = {}
    for name, argument in _PLAIN.items():
        if options.get(name) is not None:
            made[argument] = options[name]
    for name, (argument, codes) in _CODED.items():
        if options.get(name) is not None:
            made[argument] = codes[options[name]]
    made |= {arg: value for name, (arg, value) in _FLAGS.items() if options.get(name)}
    if options.get("flash_attn") is not None:
        made["flash_attn"] = options["flash_attn"] not in ("off", "0", "false")
    if options.get("tensor_split"):
        made["tensor_split"] = _shares(options["tensor_split"])
    if options.get("override_kv"):
        made["kv_overrides"] = dict(map(_override, options["override_kv"]))
    _check(made)
    return made


def _check(made: Mapping[str, Any]) -> None:
    quantised = made.get("type_v") not in (None, 0, 1, 30)
    if quantised and made.get("flash_attn") is False:
        raise OptionError("a quantised V cache (-ctv) needs flash attention", "leave -fa off out")
    if made.get("n_ubatch", 0) > made.get("n_batch", 512):
        raise OptionError(
            f"-ub {made['n_ubatch']} is more than -b {made.get('n_batch', 512)}", "raise -b as well"
        )


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        shares = []
    if not shares or any(not 0 <= share < 1e6 for share in shares) or sum(shares) == 0:
        raise OptionError(f"--tensor-split {text} is no list of shares", "write them as 3,1")
    return shares


_KINDS = {"int": int, "float": float, "str": str}


def _override(text: str) -> tuple[str, int | float | bool | str]:
    key, _, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    try:
        if not (key and colon):
            raise ValueError
        if kind == "bool":
            return key, {"true": True, "false": False}[value]
        return key, _KINDS[kind](value)
    except (KeyError, ValueError):
        raise OptionError(
            f"--override-kv {text} cannot be read",
            "write it as KEY=int:8, with int, float, bool or str",
        ) from None


def hush_llama(verbose: bool) -> None:
    """Drop llama.cpp's log lines, or show them on stderr.

    An answer that is cancelled makes llama.cpp log errors of its own; what went wrong is said in a sentence of ours.
    """
    llama_cpp.llama_log_set(_show if verbose else _DROP, ctypes.c_void_p(0))


_DROP = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, llama_cpp.llama_log_callback)
"""A function in C that does nothing with what it is given. One in Python would swallow signals: a KeyboardInterrupt that is
raised in a callback goes no further, and llama.cpp logs all the time while it loads."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _show(_level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))
    sys.stderr.flush()


@click.command(cls=Subcommand)
def info() -> None:
    """Print versions, the backends this build has, and where models are kept."""
    click.echo(f"pyspec            {__version__}")
    click.echo(f"llama-cpp-python  {llama_cpp.__version__}")
    click.echo(f"offload to GPU    {'yes' if llama_cpp.llama_supports_gpu_offload() else 'no'}")
    for name in backends():
        click.echo(f"backend           {name}")
    click.echo(f"extra buffers     {_extra_buffers()}")
    click.echo(f"threads           {default_threads()}")
    click.echo(f"cache             {cache_dir()}")


def _extra_buffers() -> str:
    """What was found out about llama.cpp's own layouts of weights."""
    known = extra_buffers_known("auto")
    if known is None:
        return "not tried yet; this processor has AMX" if has_amx() else "used"
    return (
        "used; tried here" if known else "left off: llama.cpp crashes with them on this processor"
    )


def backends() -> list[str]:
    """The backends compiled in with their features, as llama.cpp prints them."""
    text = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    named = [part.strip() for part in text.split("|")]
    groups: list[list[str]] = []
    for part in named:
        if " : " in part:
            groups.append([part])
        elif part and groups:
            groups[-1].append(part)
    return [", ".join(group) for group in groups]
