"""Options that several subcommands share, one typed object per group."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from pyspec.cli.command import TEXT, layers, model_names, option, tell
from pyspec.engine.options import Speculation
from pyspec.errors import OptionError
from pyspec.machine import AUTO, EXTRA_BUFFERS, parse_devices
from pyspec.sampling.options import (
    DRY_BREAKERS,
    KV_TYPES,
    MAX_TOKENS,
    NOISES,
    OFFERED,
    SUGGESTED,
    SamplerNumbers,
    Sampling,
    chance_seed,
    numbers,
    suggested_by,
    suggestion,
)
from pyspec.sampling.verification import Margin, Strict, Verification

_BOOLS = {"true": True, "false": False}


def _template_arg(text: str) -> tuple[str, Any]:
    key, is_there, value = text.partition("=")
    if not key.isidentifier() or not is_there:
        raise OptionError(f"cannot read --template-arg {text}", "write it as KEY=VALUE")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """Which models to use, by name or file, and where they run. None means the default: default target, free cores, as target."""

    # fmt: off
    model: str | None = option("Models", "-m", "--model", metavar="NAME|FILE", shell_complete=model_names,
        help="Model that answers: a name from `pyspec models list`, a file, NAME:TAG, OWNER/REPO[:TYPE] or a hub URL.")
    draft: str = option("Models", "--draft", aliases=("-md", "--model-draft", "--draft-model"), default="auto",
        metavar="auto|none|NAME|FILE", show_default=False, shell_complete=model_names,
        help="What proposes tokens: a model, the target's own head (mtp), the text itself (lookup), both (lookup+NAME); auto, "
        "the default, takes what is here.")
    companion: str = option("Models", "--companion", default="none", metavar="none|auto|NAME|FILE", show_default=False,
        shell_complete=model_names, help="A second small model that says how much of a draft to check.")
    chat_template: str | None = option("Models", "--chat-template", aliases=("--chat-template-file",),
        metavar="FILE|NAME|none", help="Template: a file, one named in the model, or plain text.")
    template_args: tuple[tuple[str, Any], ...] = option("Models", "--template-arg", metavar="KEY=VALUE", multiple=True,
        type=_template_arg, help="A variable of the template, such as enable_thinking=false.")
    trust_model: bool = option("Models", "--trust-model", is_flag=True, help="Skip the trial load of a new file.")
    ctx: int = option("Machine", "-c", "--ctx", aliases=("--ctx-size",), metavar="N",
        type=click.IntRange(min=0), default=4096, help="Tokens of prompt and answer; 0: the model's own.")
    threads: int | None = option("Machine", "-t", "--threads", metavar="N", type=click.IntRange(min=1),
        help="Threads; if not given, the physical cores that are free.")
    n_gpu_layers: int | str = option("Machine", "-ngl", "--n-gpu-layers", aliases=("--gpu-layers",),
        metavar="auto|all|N", type=layers, default=AUTO, help="Layers on devices; auto: as many as fit.")
    devices: tuple[str, ...] = option("Machine", "--device", aliases=("-dev",), metavar="NAME,..",
        type=parse_devices, default=(), show_default=False, help="Devices to use, as `pyspec info` names them.")
    extra_buffers: str = option("Machine", "--extra-buffers", type=click.Choice(EXTRA_BUFFERS), default="auto",
        help="llama.cpp's own layouts of weights (AMX).")
    rpc: str = option("Machine", "--rpc", metavar="HOST:PORT,..", default="",
        help="llama.cpp's RPC servers, which have no authentication.")
    draft_ngl: int | str | None = option("Machine", "--draft-ngl",
        aliases=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), metavar="N", type=layers)
    draft_devices: tuple[str, ...] | None = option("Machine", "--draft-device",
        aliases=("-devd", "--device-draft", "--spec-draft-device"), metavar="NAME,..", type=parse_devices)
    n_cpu_moe: int = option("Machine", "--n-cpu-moe", aliases=("-ncmoe",), metavar="N", type=click.IntRange(0, 512), default=0,
        show_default=False)
    cpu_moe: bool = option("Machine", "--cpu-moe", aliases=("-cmoe",), is_flag=True)
    # fmt: on

    def steady(self) -> ModelOptions:
        """Return the same options with a fixed number of threads, so that it does not change during a measurement."""
        from pyspec.machine.machine import default_threads  # noqa: PLC0415 - --help needs no psutil

        return replace(self, threads=self.threads or default_threads())


# -- llama.cpp -----------------------------------------------------------------------------------------------------------


class CodedChoice(click.Choice):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A choice of words, each with the value that llama.cpp uses."""

    def __init__(self, codes: Mapping[str, Any]) -> None:
        super().__init__(list(codes), case_sensitive=False)
        self.codes = codes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value is True else self.codes[super().convert(value, param, ctx)]


def _shares(text: str) -> list[float]:
    shares = [float(part) for part in text.replace("/", ",").split(",")]
    if min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise OptionError(f"--tensor-split {text} is not a list of shares", "write them as 3,1")
    return shares


_CACHE = CodedChoice({kind.lower(): number for number, kind in KV_TYPES.items()})
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
    lora_path: str | None = option("Machine", "--lora", metavar="FILE", type=click.Path(dir_okay=False))
    lora_scale: float | None = option("Machine", "--lora-scale", type=float)
    # fmt: on

    @property
    def arguments(self) -> dict[str, Any]:
        """The given options as keyword arguments of `SpeculativeLlama` and `Batch`. Raises OptionError."""
        arguments = {name: value for name, value in vars(self).items() if value is not None}
        del arguments["verbose"]
        if arguments.get("type_v") not in (None, 0, 1, 30) and arguments.get("flash_attn") is False:
            hint = "leave out -fa off"
            raise OptionError("a quantised V cache (-ctv) needs flash attention", hint)
        return arguments


# -- drafts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftOptions:
    """How drafts are chosen and accepted."""

    # fmt: off
    verify: str = option("Drafts", "--verify", type=click.Choice([Strict.name, Margin.name]), default=Strict.name,
        help="margin accepts near misses: the text changes.")
    theta: float = option("Drafts", "--theta", default=Margin.theta,
        help="Margin: least ratio of the best two logits.")
    gap: float = option("Drafts", "--gap", default=Margin.gap,
        help="Margin: largest difference of the two, nats.")
    budget: float | None = option("Drafts", "--budget", type=float,
        help="Margin: largest sum of gaps in an answer, nats.")
    confirm: int = option("Drafts", "--confirm", default=Margin.confirm, metavar="N",
        help="Margin: exact tokens after each near miss.")
    length: str = option("Drafts", "--length", default="auto", metavar="RULE",
        help="Tokens to check at once: auto (what pays here), fixed:K or companion.")
    draft_max: int | None = option("Drafts", "--draft-max", aliases=("--draft-n", "--spec-draft-n-max"), metavar="N",
        type=int, help="Longest draft, tokens.")
    # fmt: on

    @property
    def rule(self) -> Verification:
        """The verification rule. Impossible margin numbers are refused with any rule."""
        margin = Margin.of(self)
        return Strict() if self.verify == Strict.name else margin

    @property
    def speculation(self) -> Speculation:
        """All draft options, as a call's `speculation` argument."""
        return Speculation(True, self.rule, self.length, self.draft_max)


# -- conversations -----------------------------------------------------------------------------------------------------

# fmt: off


@dataclass(frozen=True)
class SystemOptions:
    """The system prompt."""

    system: str | None = option("Conversation", "-s", "--system", aliases=("-sys", "--system-prompt"), type=TEXT,
        help="System prompt.")


@dataclass(frozen=True)
class CacheOptions:
    """Where to keep processed prompts for later processes."""

    prompt_cache: Path | None = option("Conversation", "--prompt-cache", type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Keep the prompt as read in this file, for the next run.")


@dataclass(frozen=True)
class MemoryOptions(CacheOptions):
    """The same where a process answers more than once."""

    memory: bool = option("Drafts", "--memory", metavar="on|off", default=True, show_default=False,
        type=CodedChoice({"on": True, "off": False}), help="Draft from texts of this process; on by default.")


@dataclass(frozen=True)
class KeptOptions(MemoryOptions):
    """The same where conversations come and go."""

    cache_ram: int | None = option("Conversation", "--cache-ram", metavar="MIB", type=click.IntRange(min=0),
        help="Memory for conversations not in use; default: an eighth of what is free.")


@dataclass(frozen=True)
class DialogueOptions(SystemOptions):
    """Which conversation to continue, and whether to keep this one."""

    going_on: bool = option("Conversation", "--continue", is_flag=True,
        help="Continue the last answer or chat.")
    log: bool = option("Conversation", "--log/--no-log", default=True, help="Keep this for --continue.")


@dataclass(frozen=True)
class ShownOptions:
    """What to print after an answer."""

    stats: bool | None = option("Output", "--stats/--no-stats", default=None,
        help="After an answer: all counts, or nothing.")
    reasoning: str = option("Output", "--reasoning", type=click.Choice(["show", "hide", "off"]), default="show",
        help="Show reasoning, hide it, or ask for none.")
    reasoning_budget: int = option("Output", "--reasoning-budget", metavar="N", type=click.IntRange(-1, MAX_TOKENS),
        default=-1, show_default=False, help="End the reasoning after N tokens.")


# fmt: on


def _breaker(text: str) -> str:
    """Replace backslash escapes for newline and tab, as llama.cpp's programs do."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


_EVERYDAY = {
    "temperature": "0: always the likeliest; higher varies more.",
    "top_k": "Choose among the N likeliest tokens; 0: all.",
    "top_p": "Among the likeliest that reach this share.",
    "min_p": "Among those this likely beside the first.",
    "repeat_penalty": "Against the last 64 tokens; 1: none.",
}
"""What `--help` says about the numbers that people set; the others have llama.cpp's names."""


def number_options(kind: type[SamplerNumbers] = SamplerNumbers) -> list[tuple[str, Any, Any]]:
    """Return a field for each number of sampling; None leaves it to the model, or to its default."""
    made = []
    for each in numbers(kind):
        if each.offered:
            said = _EVERYDAY.get(each.name)
            meaning = said and f"{said}  [default: {each.default:g}]"
            settings = {"default": None, "type": each.kind, "help": meaning}
            own = option("Sampling", f"--{each.word}", aliases=each.aliases, **settings)
            made.append((each.name, each.kind | None, own))
    return made


_Numbers: Any = make_dataclass("_Numbers", number_options(), frozen=True)


@dataclass(frozen=True)
class SamplerOptions(_Numbers):  # type: ignore[misc]  # its fields come from the table
    """How the target chooses tokens. None: as the model suggests, or else the default."""

    # fmt: off
    seed: int | None = option("Sampling", "--seed", type=int,
        help="The same seed gives the same text, with any draft.")
    noise: str = option("Sampling", "--sampling", type=click.Choice(NOISES), default=NOISES[0],
        metavar="KIND",
        help="Random numbers that target and draft share (coupled), or llama.cpp's.")
    dry_sequence_breakers: tuple[str, ...] = option("Sampling", "--dry-sequence-breaker", metavar="TEXT", multiple=True,
        type=_breaker, default=DRY_BREAKERS, show_default=False)
    # fmt: on

    @property
    def given(self) -> frozenset[str]:
        """Fields that the user has set, among those that a model may suggest."""
        return frozenset(name for name in SUGGESTED if getattr(self, name) is not None)

    def filled(self, suggested: Mapping[str, float] = MappingProxyType({})) -> dict[str, Any]:
        """Return all fields; what the user has not set is as suggested, or else its default."""
        own = dict(vars(self))
        for each in OFFERED:
            if own[each.name] is None:
                own[each.name] = suggested.get(each.name, each.default)
        return own

    def sampling(
        self, seed: int | None = None, suggested: Mapping[str, float] = MappingProxyType({})
    ) -> Sampling:
        """Return the sampling options. seed: in place of a random one. suggested: the model's own values. Raises OptionError."""
        own = self.filled(suggested)
        if not 0 <= own["temperature"] < math.inf:
            raise OptionError(f"--temp is {self.temperature}", "use 0 for greedy, or up to about 2")
        chosen = self.seed if self.seed is not None else seed
        own |= {"seed": chance_seed() if chosen is None else chosen, "unseeded": chosen is None}
        breakers = tuple(word for word in self.dry_sequence_breakers if word != "none")
        return Sampling(**{**own, "dry_sequence_breakers": breakers})

    def suggested(self, path: Path, name: str) -> Mapping[str, float]:
        """Return what a model suggests, and say what of it holds here. name: how the user called it."""
        found = suggested_by(path, name)
        if sentence := suggestion(found, self.given):
            tell(sentence, err=True)
        return found
