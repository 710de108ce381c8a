"""Options that several subcommands share, as one typed object a group, and the models that they open."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import llama_cpp

from pyspec.cli.command import TEXT, F, gathered, model_names, option, stack
from pyspec.cli.streams import busy, store_progress
from pyspec.errors import OptionError
from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.rules import Margin, Strict, Verification
from pyspec.sampling import Sampling
from pyspec.store.locate import resolve
from pyspec.store.machine import EXTRA_BUFFERS, default_threads


class Layers(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """A number of layers, or `all`."""

    name = "N|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number; -1 for all of them."""
        if value == "all":
            return -1
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor `all`", param, ctx)


LAYERS = Layers()


class Coded(click.Choice):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A word, which stands for what llama.cpp calls it."""

    def __init__(self, codes: Mapping[str, Any]) -> None:
        super().__init__(list(codes), case_sensitive=False)
        self.codes = codes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The word's value."""
        return self.codes[super().convert(value, param, ctx)]


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """Which models, by name or file, and where they run. None follows the rest: the default target, the cores, the target."""

    model: str | None = None
    draft: str = "auto"
    companion: str = "none"
    trust_model: bool = False
    ctx: int = 4096
    threads: int | None = None
    n_gpu_layers: int = 0
    draft_ngl: int | None = None
    extra_buffers: str = "auto"

    def find(self, workers: int = 1) -> tuple[Path, dict[str, Any]]:
        """The target's file, fetched if need be, and what `SpeculativeLlama` and `Batch` are given with it.

        workers: share the threads that are not given.
        """
        with store_progress() as progress:
            path = resolve(self.model, progress)
            draft, companion = (_found(word, progress) for word in (self.draft, self.companion))
        threads = self.threads or max(1, default_threads() // workers)
        arguments = {
            "draft": draft, "companion": companion, "draft_n_gpu_layers": self.draft_ngl,
            "n_ctx": self.ctx, "n_gpu_layers": self.n_gpu_layers, "n_threads": threads,
            "n_threads_batch": threads, "trust": self.trust_model, "extra_buffers": self.extra_buffers,
        }  # fmt: skip
        return path, arguments


_WORDS = ("none", "auto", "lookup", "mtp", "lookup+mtp")


def _found(word: str, progress: Any) -> str:
    """A draft's word with its name turned into a path."""
    front, plus, name = word.partition("+")
    if word in _WORDS:
        return word
    if plus and front == "lookup":
        return f"{front}+{resolve(name, progress)}"
    return str(resolve(word, progress))


model_options = gathered(
    "models", ModelOptions,
    option("-m", "--model", group="Models", metavar="NAME|FILE", shell_complete=model_names,
           help="Target: a name of `pyspec models list`, a file, NAME:TAG, OWNER/REPO[:TYPE] or a hub URL; the default "
           "target if not given."),
    option("--draft", group="Models", aliases=("-md", "--model-draft", "--draft-model"), default="auto",
           show_default=True, metavar="auto|none|lookup|mtp|NAME|FILE", shell_complete=model_names,
           help="What proposes tokens: a model, the target's own next-token head (mtp), the text itself (lookup), two "
           "(lookup+NAME) or nothing. auto takes lookup and a head or draft that fits and is here."),
    option("--companion", group="Models", default="none", show_default=True, metavar="none|auto|NAME|FILE",
           shell_complete=model_names, help="A second small model that says how much of a draft is worth checking; on "
           "the pairs measured it gained nothing."),
    option("--trust-model", group="Models", is_flag=True,
           help="Skip the trial load of a model file seen for the first time."),
    option("-c", "--ctx", group="Machine", aliases=("--ctx-size",), metavar="N", type=click.IntRange(min=16),
           default=4096, show_default=True, help="Context: tokens of prompt and answer together."),
    option("-t", "--threads", group="Machine", metavar="N", type=click.IntRange(min=1),
           help="Threads; the physical cores if not given."),
    option("-ngl", "--n-gpu-layers", group="Machine", aliases=("--gpu-layers",), type=LAYERS, default=0,
           help="Layers of the target on the GPU; all (or -1) for the whole model."),
    option("--draft-ngl", group="Machine", aliases=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), type=LAYERS,
           help="The same for draft and companion; follows the target if not given."),
    option("--extra-buffers", group="Machine", type=click.Choice(EXTRA_BUFFERS), default="auto", show_default=True,
           help="llama.cpp's own layouts of weights (AMX, repacking); auto: unless they crash here."),
)  # fmt: skip
"""Which models, and where they run: `models` of the command."""

# -- drafts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftOptions:
    """How drafts are chosen and accepted."""

    verify: str = "strict"
    theta: float = Margin.theta
    gap: float = Margin.gap
    budget: float | None = None
    length: str = "auto"
    draft_max: int | None = None

    @property
    def margin(self) -> Margin:
        """The margin rule with the numbers given. Raises OptionError."""
        return Margin(self.theta, self.gap, self.budget)

    @property
    def rule(self) -> Verification:
        """The rule in force; numbers that cannot be are refused with the strict one, too."""
        margin = self.margin
        return Strict() if self.verify == "strict" else margin

    @property
    def speculation(self) -> Speculation:
        """All of it, for a call."""
        return Speculation(True, self.rule, self.length, self.draft_max)


draft_options = gathered(
    "drafts", DraftOptions,
    option("--verify", group="Drafts", type=click.Choice(["margin", "strict"]), default="strict", show_default=True,
           help="strict: the text is the target's own. margin: a drafted runner-up that the target ranks hardly lower "
           "is taken too, which is faster and changes the text."),
    option("--theta", group="Drafts", type=float, default=Margin.theta, show_default=True,
           help="Margin: the two largest logits must have at least this ratio."),
    option("--gap", group="Drafts", type=float, default=Margin.gap, show_default=True,
           help="Margin: largest difference of the two, nats; inf for none."),
    option("--budget", group="Drafts", type=float, help="Margin: sum of gaps allowed in an answer, nats."),
    option("--length", group="Drafts", default="auto", show_default=True, metavar="auto|companion|confidence:P|fixed:K",
           help="How many drafted tokens are checked at once; auto takes what pays on this machine, 0 included."),
    option("--draft-max", group="Drafts", aliases=("--draft-n", "--spec-draft-n-max"), metavar="N", type=int,
           help="Longest draft, tokens."),
)  # fmt: skip
"""How drafts are chosen and accepted: `drafts` of the command."""

# -- the sampler -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplerOptions:
    """How the target chooses tokens."""

    temp: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int | None

    def sampling(self, seed: int | None = None) -> Sampling:
        """The sampler's options, with this seed or a random one where none was given. Raises OptionError."""
        if not (self.temp >= 0 and math.isfinite(self.temp)):
            raise OptionError(f"--temp is {self.temp}", "use 0 for greedy, or up to about 2")
        chosen = self.seed if self.seed is not None else seed
        if chosen is None:
            chosen = int.from_bytes(os.urandom(4), "little")
        return Sampling(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            seed=chosen & 0xFFFFFFFF,
        )


sampler_options = gathered(
    "sampler", SamplerOptions,
    option("--temp", group="Sampling", aliases=("--temperature",), type=float, default=0.8, show_default=True,
           help="Temperature: 0 takes the likeliest token, more varies."),
    option("--top-k", group="Sampling", type=int, default=40, show_default=True,
           help="Choose among so many likeliest tokens; 0 for all."),
    option("--top-p", group="Sampling", type=float, default=0.95, show_default=True,
           help="Choose among the likeliest tokens that together have this probability."),
    option("--min-p", group="Sampling", type=float, default=0.05, show_default=True,
           help="Leave out tokens less likely than this share of the likeliest one."),
    option("--repeat-penalty", group="Sampling", type=float, default=1.0, show_default=True,
           help="Make tokens of the last 64 less likely; 1 for no penalty."),
    option("--seed", group="Sampling", type=int, help="Seed of the sampler; random if not given."),
)  # fmt: skip
"""How the target chooses tokens: `sampler` of the command."""

# -- conversations -----------------------------------------------------------------------------------------------------


def dialogue_options(group: str) -> Callable[[F], F]:
    """What `generate` and `chat` have in common: the system text, and going on with what was said before."""
    return stack(
        option("-s", "--system", group=group, aliases=("-sys", "--system-prompt"), type=TEXT, help="System text."),
        option("--continue", "going_on", group=group, is_flag=True,
               help="Go on with the last answer or chat; so does -c without a number."),
        option("--log/--no-log", group=group, default=True, help="Keep what is said for -c."),
    )  # fmt: skip


def output_options(what: str, *more: Callable[[F], F]) -> Callable[[F], F]:
    """How much is said behind an answer, and in which colours; what: is coloured."""
    return stack(
        option("--stats/--no-stats", group="Output", default=None,
               help="A line of statistics behind the sentence after an answer; --no-stats for neither."),
        *more,
        option("--color", group="Output", type=click.Choice(["auto", "always", "never"]), default="auto",
               show_default=True, help=f"Colour of {what}."),
    )  # fmt: skip


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


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


_CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7,
}  # fmt: skip
"""Types of KV caches, with ggml's numbers."""

_CACHE = Coded(_CACHE_TYPES)
_ON_OFF = {
    "on": True,
    "off": False,
    "auto": True,
    "1": True,
    "0": False,
    "true": True,
    "false": False,
}
_FLAGS = {
    "no_kv_offload": ("offload_kqv", False), "no_mmap": ("use_mmap", False), "mlock": ("use_mlock", True),
}  # fmt: skip


def engine_arguments(**options: Any) -> dict[str, Any]:
    """The keyword arguments of `SpeculativeLlama` for the options that were given, and `verbose`. Raises OptionError."""
    given = {name: value for name, value in options.items() if value is not None}
    given |= {name: value for flag, (name, value) in _FLAGS.items() if given.pop(flag, False)}
    if overrides := dict(given.pop("kv_overrides", ())):
        given["kv_overrides"] = overrides
    if given.get("type_v") not in (None, 0, 1, 30) and given.get("flash_attn") is False:
        raise OptionError("a quantised V cache (-ctv) needs flash attention", "leave -fa off out")
    if given.get("n_ubatch", 0) > (most := given.get("n_batch", 512)):
        raise OptionError(f"-ub {given['n_ubatch']} is more than -b {most}", "raise -b as well")
    return given


engine_options = gathered(
    "engine", engine_arguments,
    option("-b", "--batch-size", "n_batch", group="Engine", metavar="N", type=click.IntRange(1, 1 << 20),
           help="Most tokens of a prompt given to llama.cpp at once."),
    option("-ub", "--ubatch-size", "n_ubatch", group="Engine", metavar="N", type=click.IntRange(1, 1 << 20),
           help="Most tokens it computes at once."),
    option("-tb", "--threads-batch", "n_threads_batch", group="Engine", metavar="N", type=click.IntRange(1, 4096),
           help="Threads while a prompt is read; as -t if not given."),
    option("-fa", "--flash-attn", group="Engine", metavar="[on|off|auto]", words=list(_ON_OFF),
           type=Coded(_ON_OFF), help="Flash attention; on if not given."),
    option("-ctk", "--cache-type-k", "type_k", group="Engine", type=_CACHE, metavar="TYPE",
           help=f"Type of the target's K cache: {', '.join(_CACHE_TYPES)}."),
    option("-ctv", "--cache-type-v", "type_v", group="Engine", type=_CACHE, metavar="TYPE",
           help="Type of its V cache; a quantised one needs -fa on."),
    option("-ctkd", "--cache-type-k-draft", "draft_type_k", group="Engine", type=_CACHE, metavar="TYPE",
           help="The same for draft and companion."),
    option("-ctvd", "--cache-type-v-draft", "draft_type_v", group="Engine", type=_CACHE, metavar="TYPE",
           help="The same for draft and companion."),
    option("-nkvo", "--no-kv-offload", group="Engine", is_flag=True,
           help="Keep the KV cache in main memory when layers are on a GPU."),
    option("--no-mmap", group="Engine", is_flag=True, help="Read the model into memory instead of mapping it."),
    option("--mlock", group="Engine", is_flag=True, help="Keep the model in memory: no swapping."),
    option("-sm", "--split-mode", group="Engine", type=Coded({"none": 0, "layer": 1, "row": 2}),
           help="How several GPUs share the model."),
    option("-mg", "--main-gpu", group="Engine", metavar="N", type=click.IntRange(min=0),
           help="The GPU for what is not shared."),
    option("-ts", "--tensor-split", group="Engine", metavar="N,N,..", type=_shares, help="Share of each GPU, such as 3,1."),
    option("--rope-scaling", "rope_scaling_type", group="Engine", type=Coded({"none": 0, "linear": 1, "yarn": 2}),
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
    option("--override-kv", "kv_overrides", group="Engine", metavar="KEY=TYPE:VALUE", multiple=True, type=_override,
           help="Replace a value of the model's metadata; TYPE is int, float, bool or str."),
    option("-v", "--verbose", group="Engine", is_flag=True, help="Show llama.cpp's own log lines."),
)  # fmt: skip
"""How llama.cpp runs, each option by the name it has there: `engine` of the command."""

# -- opening -----------------------------------------------------------------------------------------------------------


def open_model(
    options: ModelOptions,
    drafts: DraftOptions = DraftOptions(),
    engine: Mapping[str, Any] | None = None,
) -> SpeculativeLlama:
    """Find and load what the options name; engine: the arguments of `engine_options`."""
    path, arguments = options.find()
    asked = {"verification": drafts.rule, "length": drafts.length, **(engine or {})}
    hush_llama(asked.pop("verbose", False))
    with busy(f"loading {path.stem}"):
        return SpeculativeLlama(path, **{**arguments, **asked})


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
