"""Options that several subcommands share, one typed object per group, and opening models with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from pyspec.batch.room import longest_context
from pyspec.cli.command import LAYERS, TEXT, model_names, option, tell
from pyspec.cli.engine_options import EngineOptions, hush_llama
from pyspec.errors import OptionError
from pyspec.llama.speculative import Speculation, SpeculativeLlama
from pyspec.sampling.chain import DRY_BREAKERS, Sampling
from pyspec.sampling.noise import NOISES, chance_seed
from pyspec.sampling.suggested import FOLLOWED, suggested_by
from pyspec.sampling.verification import AUTO as AUTO_RULE
from pyspec.sampling.verification import Margin, PairRule, Strict, Verification
from pyspec.screen.progress import busy, store_progress
from pyspec.store.devices import (
    AUTO,
    add_rpc_servers,
    lacking_devices,
    missed_card_once,
    parse_devices,
)
from pyspec.store.locate import resolve
from pyspec.store.machine import EXTRA_BUFFERS, default_threads
from pyspec.store.others import name_of

_LEAST_CTX = 16


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
        help="Model that answers (target): a name from `pyspec models list`, a file, NAME:TAG, OWNER/REPO[:TYPE] or a hub URL; "
        "if not given, the default target.")
    draft: str = option("Models", "--draft", aliases=("-md", "--model-draft", "--draft-model"), default="auto",
        metavar="auto|none|lookup|mtp|NAME|FILE", shell_complete=model_names,
        help="What proposes tokens: a model, the target's own next-token head (mtp), the text itself (lookup), both "
        "(lookup+NAME) or nothing. auto uses lookup, plus a matching head or draft if one is here.")
    companion: str = option("Models", "--companion", default="none", metavar="none|auto|NAME|FILE",
        shell_complete=model_names,
        help="A second small model that estimates how much of a draft is worth checking; on the measured pairs it gained "
        "nothing.")
    chat_template: str | None = option("Models", "--chat-template", aliases=("--chat-template-file",),
        metavar="FILE|NAME|none", help="Chat template: a file, the name of one in the model file, or none for plain text; "
        "if not given, the model's own.")
    template_args: tuple[tuple[str, Any], ...] = option("Models", "--template-arg", metavar="KEY=VALUE", multiple=True,
        type=_template_arg, help="A variable of the template, such as enable_thinking=false; may be repeated.")
    trust_model: bool = option("Models", "--trust-model", is_flag=True,
        help="Skip the trial load of a model file seen for the first time.")
    ctx: int = option("Machine", "-c", "--ctx", aliases=("--ctx-size",), metavar="N", type=click.IntRange(min=0),
        default=4096, help="Context size in tokens, for prompt and answer together; 0 for the model's training length, or what "
        "memory holds.")
    threads: int | None = option("Machine", "-t", "--threads", metavar="N", type=click.IntRange(min=1),
        help="Threads; if not given, the physical cores that other programs leave.")
    n_gpu_layers: int | str = option("Machine", "-ngl", "--n-gpu-layers", aliases=("--gpu-layers",),
        metavar="auto|all|N", type=LAYERS, default=AUTO,
        help="Layers of the target to put on devices; auto for as many as fit, all (or -1) for the whole model.")
    draft_ngl: int | str | None = option("Machine", "--draft-ngl",
        aliases=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), metavar="auto|all|N", type=LAYERS,
        help="The same for draft and companion; if not given, as for the target.")
    devices: tuple[str, ...] = option("Machine", "--device", aliases=("-dev",), metavar="NAME,..",
        type=parse_devices, default=(), show_default=False,
        help="Devices to use, as `pyspec info` names them; if not given, all.")
    draft_devices: tuple[str, ...] | None = option("Machine", "--draft-device",
        aliases=("-devd", "--device-draft", "--spec-draft-device"), metavar="NAME,..", type=parse_devices,
        help="The same for draft and companion.")
    rpc: str = option("Machine", "--rpc", metavar="HOST:PORT,..", default="",
        help="Use llama.cpp's RPC servers as devices. They have no authentication: use them in trusted networks only. If one "
        "dies, this process dies too.")
    extra_buffers: str = option("Machine", "--extra-buffers", type=click.Choice(EXTRA_BUFFERS), default="auto",
        help="llama.cpp's own layouts of weights (AMX, repacking); auto uses them unless they crash here.")
    # fmt: on

    def find(self, workers: int = 1, at_once: int = 1) -> tuple[Path, dict[str, Any]]:
        """Return the target's file, fetched if needed, and the arguments of `SpeculativeLlama` and `Batch` for these options.

        workers: processes that share the cores if no threads are given; a single one adapts its threads to other programs.
        at_once: sequences with a whole context each. Raises OptionError and the like.
        """
        if 0 < self.ctx < _LEAST_CTX:
            raise OptionError(f"a context of {self.ctx} tokens is too small", f"use {_LEAST_CTX}")
        add_rpc_servers(self.rpc)
        asks = any(layers not in (None, 0, AUTO) for layers in (self.n_gpu_layers, self.draft_ngl))
        if asks and (lacking := lacking_devices(self.devices)):
            for line in lacking:
                tell(line, err=True)
            return replace(self, n_gpu_layers=0, draft_ngl=None).find(workers, at_once)
        if self.n_gpu_layers == AUTO and (missed := missed_card_once()):
            tell(missed, err=True)
        with store_progress() as progress:
            path = resolve(self.model, progress, self.n_gpu_layers, self.devices)
            draft, companion = (_found(word, progress) for word in (self.draft, self.companion))
        shared = max(1, default_threads() // workers) if workers > 1 else None
        threads = self.threads or shared
        sides, where = files_among(draft, companion), (self.n_gpu_layers, self.devices)
        n_ctx = self.ctx or longest_context(path, sides, *where, at_once)
        arguments = {
            "draft": draft, "companion": companion, "draft_n_gpu_layers": self.draft_ngl,
            "n_ctx": n_ctx, "n_gpu_layers": self.n_gpu_layers, "n_threads": threads,
            "n_threads_batch": threads, "trust": self.trust_model, "extra_buffers": self.extra_buffers,
            "devices": self.devices, "draft_devices": self.draft_devices,
            "chat_template": self.chat_template, "template_args": dict(self.template_args),
        }  # fmt: skip
        return path, arguments

    def steady(self) -> ModelOptions:
        """Return the same options with a fixed number of threads, so that it does not change during a measurement."""
        return replace(self, threads=self.threads or default_threads())


def files_among(*words: str) -> list[Path]:
    """Return the model files among resolved values of --draft and --companion."""
    paths = (Path(word.removeprefix("lookup+")) for word in words)
    return [path for path in paths if path.is_file()]


WORDS = ("none", "auto", "lookup", "mtp", "lookup+mtp")


def _found(word: str, progress: Any) -> str:
    """Replace the model name in a value of --draft or --companion by its path."""
    front, plus, name = word.partition("+")
    if word in WORDS:
        return word
    if plus and front == "lookup":
        return f"{front}+{resolve(name, progress)}"
    return str(resolve(word, progress))


# -- drafts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftOptions:
    """How drafts are chosen and accepted."""

    # fmt: off
    verify: str = option("Drafts", "--verify", type=click.Choice([AUTO_RULE, "margin", "strict"]), default=AUTO_RULE,
        help="strict keeps the target's own text; margin also accepts near misses: faster, but the text changes. auto is strict "
        "unless you had `pyspec quality --verdict` measure this pair, and it allowed a margin.")
    theta: float = option("Drafts", "--theta", default=Margin.theta,
        help="Margin: smallest ratio of the two largest logits.")
    gap: float = option("Drafts", "--gap", default=Margin.gap,
        help="Margin: largest difference of the two, nats; inf for no limit.")
    budget: float | None = option("Drafts", "--budget", type=float,
        help="Margin: largest sum of gaps in an answer, nats.")
    confirm: int = option("Drafts", "--confirm", default=Margin.confirm, metavar="N",
        help="Margin: how many drafted tokens after a relaxed one must be the target's own choices.")
    length: str = option("Drafts", "--length", default="auto", metavar="auto|companion|confidence:P|fixed:K",
        help="How many drafted tokens to check at once; auto chooses what pays on this machine, 0 included.")
    draft_max: int | None = option("Drafts", "--draft-max", aliases=("--draft-n", "--spec-draft-n-max"), metavar="N",
        type=int, help="Longest draft, tokens.")
    # fmt: on

    @property
    def margin(self) -> Margin:
        """The margin rule with the given numbers. Raises OptionError."""
        return Margin.of(self)

    @property
    def rule(self) -> Verification:
        """The verification rule; for auto, that of the pair's verdict. Impossible margin numbers are refused with any rule."""
        margin = self.margin
        if self.verify == AUTO_RULE:
            return PairRule()
        return Strict() if self.verify == "strict" else margin

    @property
    def speculation(self) -> Speculation:
        """All draft options, as a call's `speculation` argument."""
        rule = self.rule
        return Speculation(
            True, None if isinstance(rule, PairRule) else rule, self.length, self.draft_max
        )


# -- the sampler -------------------------------------------------------------------------------------------------------


def _breaker(text: str) -> str:
    """Replace backslash escapes for newline and tab, as llama.cpp's programs do."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _left(option_name: str, name: str, **settings: Any) -> Any:
    """Return a field for an option that a model may suggest; None leaves it to the model, or to the default of `Sampling`."""
    default = getattr(Sampling, name)
    settings |= {"type": type(default), "show_default": f"{default:g} or the model's own"}
    return option("Sampling", option_name, default=None, **settings)


@dataclass(frozen=True)
class SamplerOptions:
    """How the target chooses tokens. None: as the model suggests, or else the default of `Sampling`."""

    # fmt: off
    temperature: float | None = _left("--temp", "temperature", aliases=("--temperature",),
        help="Temperature: 0 always takes the likeliest token; higher values vary more.")
    top_k: int | None = _left("--top-k", "top_k", help="Choose among the N likeliest tokens; 0 for all.")
    top_p: float | None = _left("--top-p", "top_p",
        help="Choose among the likeliest tokens that together reach this probability.")
    min_p: float | None = _left("--min-p", "min_p", help="Drop tokens less likely than this share of the likeliest one.")
    typical_p: float | None = _left("--typical", "typical_p", aliases=("--typical-p",),
        help="Choose among the locally typical tokens that together reach this probability; 1 for all.")
    repeat_penalty: float | None = _left("--repeat-penalty", "repeat_penalty",
        help="Make the last 64 tokens less likely; 1 for no penalty.")
    presence_penalty: float | None = _left("--presence-penalty", "presence_penalty",
        help="Subtract this from the logits of the last 64 tokens; 0 for no penalty.")
    frequency_penalty: float | None = _left("--frequency-penalty", "frequency_penalty",
        help="Subtract this for each time that a token is among the last 64; 0 for no penalty.")
    seed: int | None = option("Sampling", "--seed", type=int,
        help="Seed of the random draws: a fixed seed gives the same text with any draft.")
    noise: str = option("Sampling", "--sampling", type=click.Choice(NOISES), default=NOISES[0],
        help="Source of random numbers: pyspec's, which target and draft share (coupled), or llama.cpp's.")
    dry_multiplier: float = option("Sampling", "--dry-multiplier", default=Sampling.dry_multiplier,
        help="DRY: penalty for tokens that continue a repetition of earlier text; 0 for off.")
    dry_base: float = option("Sampling", "--dry-base", default=Sampling.dry_base,
        help="DRY: factor by which the penalty grows with each repeated token.")
    dry_allowed_length: int = option("Sampling", "--dry-allowed-length", default=Sampling.dry_allowed_length,
        help="DRY: longest repetition without a penalty, tokens.")
    dry_penalty_last_n: int = option("Sampling", "--dry-penalty-last-n", default=Sampling.dry_penalty_last_n,
        help="DRY: how many tokens to look back, prompt included; -1 for all.")
    dry_sequence_breakers: tuple[str, ...] = option("Sampling", "--dry-sequence-breaker", metavar="TEXT", multiple=True,
        type=_breaker, default=DRY_BREAKERS, show_default=False,
        help="DRY: text that ends a repetition (default: newline, colon, quote, asterisk); may be repeated; none for no such "
        "text.")
    xtc_probability: float | None = _left("--xtc-probability", "xtc_probability",
        help="XTC: how often to exclude the likeliest tokens, 0 to 1.")
    xtc_threshold: float | None = _left("--xtc-threshold", "xtc_threshold",
        help="XTC: exclude tokens of at least this probability, except the least likely of them. No effect above 0.5.")
    dynatemp_range: float = option("Sampling", "--dynatemp-range", default=Sampling.dynatemp_range,
        help="Dynamic temperature: up to this much below --temp if the model is sure, above it if not; 0 for off.")
    dynatemp_exponent: float = option("Sampling", "--dynatemp-exp", default=Sampling.dynatemp_exponent,
        help="Dynamic temperature: exponent applied to the entropy.")
    # fmt: on

    @property
    def given(self) -> frozenset[str]:
        """Fields that the user has set, among those that a model may suggest."""
        return frozenset(name for name in FOLLOWED if getattr(self, name) is not None)

    def filled(self, suggested: Mapping[str, float] = MappingProxyType({})) -> dict[str, Any]:
        """Return all fields; what the user has not set is as suggested, or else the default of `Sampling`."""
        own = dict(vars(self))
        for name in FOLLOWED:
            if own[name] is None:
                own[name] = suggested.get(name, getattr(Sampling, name))
        return own

    def sampling(
        self, seed: int | None = None, suggested: Mapping[str, float] = MappingProxyType({})
    ) -> Sampling:
        """Return the sampling options. Without --seed, use `seed`, or else a random one. Raises OptionError.

        suggested: the model's own values, for options that are not given.
        """
        own = self.filled(suggested)
        if not 0 <= own["temperature"] < math.inf:
            hint = "use 0 for greedy, or up to about 2"
            raise OptionError(f"--temp is {self.temperature}", hint)
        chosen = self.seed if self.seed is not None else seed
        if chosen is None:
            chosen = chance_seed()
        breakers = tuple(word for word in self.dry_sequence_breakers if word != "none")
        return Sampling(**{**own, "dry_sequence_breakers": breakers, "seed": chosen})

    def suggested(self, path: Path, name: str = "") -> Mapping[str, float]:
        """Return what a model suggests, and say what of it holds here. name: how the user called it."""
        found = suggested_by(path, name)
        if told := found.sentence(self.given):
            tell(told, err=True)
        return found.values


# -- conversations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SystemOptions:
    """The system prompt."""

    # fmt: off
    system: str | None = option("Conversation", "-s", "--system", aliases=("-sys", "--system-prompt"), type=TEXT,
        help="System prompt.")
    # fmt: on


def _memory(text: str) -> bool | Path:
    return {"on": True, "off": False}.get(text, Path(text))


@dataclass(frozen=True)
class CacheOptions:
    """Where to keep processed prompts and earlier texts for later processes."""

    # fmt: off
    prompt_cache: Path | None = option("Prompt", "--prompt-cache", type=click.Path(path_type=Path, dir_okay=False),
        help="Keep the processed prompt in this file and reuse it next time; with several prompts, only their common beginning.")
    memory: bool | Path = option("Drafts", "--memory", metavar="on|off|DIR", type=_memory, default="on",
        help="Draft from earlier texts too: those of this process (on), or also those of other processes with the same DIR.")
    # fmt: on


@dataclass(frozen=True)
class DialogueOptions(SystemOptions):
    """Which conversation to continue, and whether to keep this one."""

    # fmt: off
    going_on: bool = option("Conversation", "--continue", is_flag=True,
        help="Continue the last answer or chat; -c without a number does the same.")
    log: bool = option("Conversation", "--log/--no-log", default=True, help="Keep the conversation for -c.")
    # fmt: on


@dataclass(frozen=True)
class ShownOptions:
    """What to print after an answer, and in which colours."""

    # fmt: off
    stats: bool | None = option("Output", "--stats/--no-stats", default=None,
        help="Add a line of statistics after the answer; --no-stats prints nothing.")
    color: str = option("Output", "--color", type=click.Choice(["auto", "always", "never"]), default="auto",
        help="Colours of notes and tokens.")
    reasoning: str = option("Output", "--reasoning", type=click.Choice(["show", "hide", "off"]), default="show",
        help="Reasoning before an answer: show it (dimmed on a terminal), hide it, or ask the model for none.")
    wrap: bool = option("Output", "--wrap/--no-wrap", default=True, help="Break lines between words on a terminal.")
    # fmt: on


# -- opening -----------------------------------------------------------------------------------------------------------


_AS_IT_IS = EngineOptions()


def open_model(
    options: ModelOptions,
    drafts: DraftOptions = DraftOptions(),
    engine: EngineOptions = _AS_IT_IS,
    memory: bool | Path = False,
) -> SpeculativeLlama:
    """Find and load the models that the options name."""
    asked = {
        "verification": drafts.rule,
        "length": drafts.length,
        "memory": memory,
        **engine.arguments,
    }
    path, arguments = options.find()
    hush_llama(engine.verbose)
    with busy(f"loading {name_of(path)}"):
        llm = SpeculativeLlama(path, **{**arguments, **asked})
    if llm.placed:
        tell(llm.placed, err=True)
    if options.ctx and (n_ctx := llm.n_ctx()) > options.ctx:
        tell(
            f"llama.cpp rounds contexts up: -c {options.ctx} makes one of {n_ctx} tokens", err=True
        )
    return llm
