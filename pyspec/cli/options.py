"""Options that several subcommands share, as one typed object a group, and the models that they open."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import llama_cpp

from pyspec.cli.command import LAYERS, TEXT, model_names, option, tell
from pyspec.display import safe
from pyspec.errors import OptionError
from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.noise import NOISES
from pyspec.offload import AUTO
from pyspec.progress import busy, store_progress
from pyspec.rules import Margin, Strict, Verification
from pyspec.sampling import Sampling
from pyspec.store.devices import add_rpc_servers, parse_devices, require_devices
from pyspec.store.locate import resolve
from pyspec.store.machine import EXTRA_BUFFERS, default_threads


class Coded(click.Choice):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A word, which stands for what llama.cpp calls it."""

    def __init__(self, codes: Mapping[str, Any]) -> None:
        super().__init__(list(codes), case_sensitive=False)
        self.codes = codes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The word's value."""
        return self.codes[super().convert(value, param, ctx)]


def _template_arg(text: str) -> tuple[str, Any]:
    """A variable of a template: JSON where it reads as such, else text."""
    key, is_there, value = text.partition("=")
    if not key.isidentifier() or not is_there:
        raise OptionError(f"--template-arg {text} cannot be read", "write it as KEY=VALUE")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """Which models, by name or file, and where they run. None follows the rest: the default target, the cores, the target."""

    # fmt: off
    model: str | None = option("Models", "-m", "--model", metavar="NAME|FILE", shell_complete=model_names,
        help="Target: a name of `pyspec models list`, a file, NAME:TAG, OWNER/REPO[:TYPE] or a hub URL; the default "
        "target if not given.")
    draft: str = option("Models", "--draft", aliases=("-md", "--model-draft", "--draft-model"), default="auto",
        metavar="auto|none|lookup|mtp|NAME|FILE", shell_complete=model_names,
        help="What proposes tokens: a model, the target's own next-token head (mtp), the text itself (lookup), two "
        "(lookup+NAME) or nothing. auto takes lookup and a head or draft that fits and is here.")
    companion: str = option("Models", "--companion", default="none", metavar="none|auto|NAME|FILE",
        shell_complete=model_names,
        help="A second small model that says how much of a draft is worth checking; on the pairs measured it gained "
        "nothing.")
    chat_template: str | None = option("Models", "--chat-template", aliases=("--chat-template-file",),
        metavar="FILE|NAME|none", help="How prompts are written: a file, one of the model file's templates, or plain words; "
        "its own if not given.")
    template_args: tuple[tuple[str, Any], ...] = option("Models", "--template-arg", metavar="KEY=VALUE", multiple=True,
        type=_template_arg, help="A variable of the template, such as enable_thinking=false; may be given more than once.")
    trust_model: bool = option("Models", "--trust-model", is_flag=True,
        help="Skip the trial load of a model file seen for the first time.")
    ctx: int = option("Machine", "-c", "--ctx", aliases=("--ctx-size",), metavar="N", type=click.IntRange(min=16),
        default=4096, help="Context: tokens of prompt and answer together.")
    threads: int | None = option("Machine", "-t", "--threads", metavar="N", type=click.IntRange(min=1),
        help="Threads; the physical cores if not given.")
    n_gpu_layers: int | str = option("Machine", "-ngl", "--n-gpu-layers", aliases=("--gpu-layers",),
        metavar="auto|all|N", type=LAYERS, default=AUTO,
        help="Layers of the target on devices; auto for as many as fit there, all (or -1) for the whole model.")
    draft_ngl: int | str | None = option("Machine", "--draft-ngl",
        aliases=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), metavar="auto|all|N", type=LAYERS,
        help="The same for draft and companion; follows the target if not given.")
    devices: tuple[str, ...] = option("Machine", "--device", aliases=("-dev",), metavar="NAME,..",
        type=parse_devices, default=(), show_default=False,
        help="Devices to use, as `pyspec info` names them; all if not given.")
    draft_devices: tuple[str, ...] | None = option("Machine", "--draft-device",
        aliases=("-devd", "--device-draft", "--spec-draft-device"), metavar="NAME,..", type=parse_devices,
        help="The same for draft and companion.")
    rpc: str = option("Machine", "--rpc", metavar="HOST:PORT,..", default="",
        help="Use llama.cpp's RPC servers as devices. They know no authentication: for trusted networks only; one that dies "
        "ends the process.")
    extra_buffers: str = option("Machine", "--extra-buffers", type=click.Choice(EXTRA_BUFFERS), default="auto",
        help="llama.cpp's own layouts of weights (AMX, repacking); auto: unless they crash here.")
    # fmt: on

    def find(self, workers: int = 1) -> tuple[Path, dict[str, Any]]:
        """The target's file, fetched if need be, and what `SpeculativeLlama` and `Batch` are given with it.

        workers: share the threads that are not given.
        """
        add_rpc_servers(self.rpc)
        for layers in (self.n_gpu_layers, self.draft_ngl):
            if layers not in (None, 0, AUTO):
                require_devices(self.devices)
        with store_progress() as progress:
            path = resolve(self.model, progress)
            draft, companion = (_found(word, progress) for word in (self.draft, self.companion))
        threads = self.threads or max(1, default_threads() // workers)
        arguments = {
            "draft": draft, "companion": companion, "draft_n_gpu_layers": self.draft_ngl,
            "n_ctx": self.ctx, "n_gpu_layers": self.n_gpu_layers, "n_threads": threads,
            "n_threads_batch": threads, "trust": self.trust_model, "extra_buffers": self.extra_buffers,
            "devices": self.devices, "draft_devices": self.draft_devices,
            "chat_template": self.chat_template, "template_args": dict(self.template_args),
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


# -- drafts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftOptions:
    """How drafts are chosen and accepted."""

    # fmt: off
    verify: str = option("Drafts", "--verify", type=click.Choice(["margin", "strict"]), default="strict",
        help="strict: the text is the target's own. margin: a drafted runner-up that the target ranks hardly lower "
        "is taken too, which is faster and changes the text.")
    theta: float = option("Drafts", "--theta", default=Margin.theta,
        help="Margin: the two largest logits must have at least this ratio.")
    gap: float = option("Drafts", "--gap", default=Margin.gap,
        help="Margin: largest difference of the two, nats; inf for none.")
    budget: float | None = option("Drafts", "--budget", type=float,
        help="Margin: sum of gaps allowed in an answer, nats.")
    length: str = option("Drafts", "--length", default="auto", metavar="auto|companion|confidence:P|fixed:K",
        help="How many drafted tokens are checked at once; auto takes what pays on this machine, 0 included.")
    draft_max: int | None = option("Drafts", "--draft-max", aliases=("--draft-n", "--spec-draft-n-max"), metavar="N",
        type=int, help="Longest draft, tokens.")
    # fmt: on

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


# -- the sampler -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplerOptions:
    """How the target chooses tokens."""

    # fmt: off
    temperature: float = option("Sampling", "--temp", aliases=("--temperature",), default=0.8,
        help="Temperature: 0 takes the likeliest token, more varies.")
    top_k: int = option("Sampling", "--top-k", default=40, help="Choose among so many likeliest tokens; 0 for all.")
    top_p: float = option("Sampling", "--top-p", default=0.95,
        help="Choose among the likeliest tokens that together have this probability.")
    min_p: float = option("Sampling", "--min-p", default=0.05,
        help="Leave out tokens less likely than this share of the likeliest one.")
    repeat_penalty: float = option("Sampling", "--repeat-penalty", default=1.0,
        help="Make tokens of the last 64 less likely; 1 for no penalty.")
    seed: int | None = option("Sampling", "--seed", type=int,
        help="Seed of the draws, random if not given: the same text whatever drafts.")
    noise: str = option("Sampling", "--sampling", type=click.Choice(NOISES), default=NOISES[0],
        help="Whose random numbers draw: ours, which drafts share (coupled), or llama.cpp's.")
    # fmt: on

    def sampling(self, seed: int | None = None) -> Sampling:
        """The sampler's options, with this seed or a random one where none was given. Raises OptionError."""
        if not 0 <= self.temperature < math.inf:
            raise OptionError(f"--temp is {self.temperature}", "use 0 for greedy, or up to about 2")
        chosen = self.seed if self.seed is not None else seed
        if chosen is None:
            chosen = int.from_bytes(os.urandom(4), "little")
        return Sampling(**{**vars(self), "seed": chosen & 0xFFFFFFFF})


# -- conversations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DialogueOptions:
    """What an answer or a chat goes on from, and whether it is kept."""

    # fmt: off
    system: str | None = option("Conversation", "-s", "--system", aliases=("-sys", "--system-prompt"), type=TEXT,
        help="System text.")
    going_on: bool = option("Conversation", "--continue", is_flag=True,
        help="Go on with the last answer or chat; so does -c without a number.")
    log: bool = option("Conversation", "--log/--no-log", default=True, help="Keep what is said for -c.")
    # fmt: on


@dataclass(frozen=True)
class ShownOptions:
    """How much is said behind an answer, and in which colours."""

    # fmt: off
    stats: bool | None = option("Output", "--stats/--no-stats", default=None,
        help="A line of statistics behind the sentence after an answer; --no-stats for neither.")
    color: str = option("Output", "--color", type=click.Choice(["auto", "always", "never"]), default="auto",
        help="Colour of notes and tokens.")
    reasoning: str = option("Output", "--reasoning", type=click.Choice(["show", "hide", "off"]), default="show",
        help="What a model thinks before it answers: dimmed on a terminal, hidden, or not asked for.")
    wrap: bool = option("Output", "--wrap/--no-wrap", default=True, help="Break lines between words on a terminal.")
    # fmt: on


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


def _shares(text: str) -> list[float]:
    shares = [float(part) for part in text.replace("/", ",").split(",")]
    if min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise OptionError(f"--tensor-split {text} is no list of shares", "write them as 3,1")
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
        raise OptionError(f"--override-kv {text} cannot be read", hint) from None


_CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7,
}  # fmt: skip
"""Types of KV caches, with ggml's numbers."""

_CACHE = Coded(_CACHE_TYPES)
_ON_OFF = {"on": True, "off": False, "auto": True, "1": True, "0": False, **_BOOLS}


@dataclass(frozen=True)
class EngineOptions:
    """How llama.cpp runs, each option by the name it has there."""

    # fmt: off
    n_batch: int | None = option("Engine", "-b", "--batch-size", metavar="N", type=click.IntRange(1, 1 << 20),
        help="Most tokens of a prompt given to llama.cpp at once.")
    n_ubatch: int | None = option("Engine", "-ub", "--ubatch-size", metavar="N", type=click.IntRange(1, 1 << 20),
        help="Most tokens it computes at once.")
    n_threads_batch: int | None = option("Engine", "-tb", "--threads-batch", metavar="N",
        type=click.IntRange(1, 4096), help="Threads while a prompt is read; as -t if not given.")
    flash_attn: bool | None = option("Engine", "-fa", "--flash-attn", metavar="[on|off|auto]", words=list(_ON_OFF),
        type=Coded(_ON_OFF), help="Flash attention; on if not given.")
    type_k: int | None = option("Engine", "-ctk", "--cache-type-k", type=_CACHE, metavar="TYPE",
        help=f"Type of the target's K cache: {', '.join(_CACHE_TYPES)}.")
    type_v: int | None = option("Engine", "-ctv", "--cache-type-v", type=_CACHE, metavar="TYPE",
        help="Type of its V cache; a quantised one needs -fa on.")
    draft_type_k: int | None = option("Engine", "-ctkd", "--cache-type-k-draft", type=_CACHE, metavar="TYPE",
        help="The same for draft and companion; f16 if not given.")
    draft_type_v: int | None = option("Engine", "-ctvd", "--cache-type-v-draft", type=_CACHE, metavar="TYPE",
        help="The same for draft and companion; f16 if not given.")
    offload_kqv: bool | None = option("Engine", "-nkvo", "--no-kv-offload", is_flag=True, flag_value=False,
        default=None, help="Keep the KV cache in main memory when layers are on a GPU.")
    use_mmap: bool | None = option("Engine", "--no-mmap", is_flag=True, flag_value=False, default=None,
        help="Read the model into memory instead of mapping it.")
    use_mlock: bool | None = option("Engine", "--mlock", is_flag=True, default=None,
        help="Keep the model in memory: no swapping.")
    split_mode: int | None = option("Engine", "-sm", "--split-mode", type=Coded({"none": 0, "layer": 1, "row": 2}),
        help="How several GPUs share the model.")
    main_gpu: int | None = option("Engine", "-mg", "--main-gpu", metavar="N", type=click.IntRange(min=0),
        help="The GPU for what is not shared.")
    tensor_split: list[float] | None = option("Engine", "-ts", "--tensor-split", metavar="N,N,..", type=_shares,
        help="Share of each GPU, such as 3,1.")
    rope_scaling_type: int | None = option("Engine", "--rope-scaling",
        type=Coded({"none": 0, "linear": 1, "yarn": 2}),
        help="How positions are stretched; as the model says if not given.")
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
    verbose: bool = option("Engine", "-v", "--verbose", is_flag=True, help="Show llama.cpp's own log lines.")
    # fmt: on

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `SpeculativeLlama` for what was given. Raises OptionError."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        del given["verbose"]
        if overrides := dict(given.pop("kv_overrides")):
            given["kv_overrides"] = overrides
        if given.get("type_v") not in (None, 0, 1, 30) and given.get("flash_attn") is False:
            raise OptionError(
                "a quantised V cache (-ctv) needs flash attention", "leave -fa off out"
            )
        if given.get("n_ubatch", 0) > (most := given.get("n_batch", 512)):
            raise OptionError(f"-ub {given['n_ubatch']} is more than -b {most}", "raise -b as well")
        return given


# -- opening -----------------------------------------------------------------------------------------------------------


def open_model(
    options: ModelOptions,
    drafts: DraftOptions = DraftOptions(),
    engine: EngineOptions = EngineOptions(),
) -> SpeculativeLlama:
    """Find and load what the options name."""
    asked = {"verification": drafts.rule, "length": drafts.length, **engine.arguments}
    path, arguments = options.find()
    hush_llama(engine.verbose)
    with busy(f"loading {path.stem}"):
        llm = SpeculativeLlama(path, **{**arguments, **asked})
    if llm.placed:
        tell(llm.placed, err=True)
    return llm


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
    sys.stderr.write(safe(text.decode("utf-8", "replace")))
    sys.stderr.flush()
