"""Options that several subcommands share, as one typed object a group, and the models that they open."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyspec.cli.command import TEXT, F, gathered, model_names, option, stack
from pyspec.cli.engine import engine_arguments, hush_llama
from pyspec.cli.streams import busy, store_progress
from pyspec.errors import OptionError
from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.rules import Margin, Strict, Verification
from pyspec.sampling import Sampling
from pyspec.store import resolve
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

    def find(self, workers: int = 1) -> FoundModels:
        """The files, fetched if need be; threads not given are shared by so many workers."""
        with store_progress() as progress:
            path = resolve(self.model, progress)
            draft, companion = (_found(word, progress) for word in (self.draft, self.companion))
        threads = self.threads or max(1, default_threads() // workers)
        arguments = {
            "draft": draft, "companion": companion, "draft_n_gpu_layers": self.draft_ngl,
            "n_ctx": self.ctx, "n_gpu_layers": self.n_gpu_layers, "n_threads": threads,
            "n_threads_batch": threads, "trust": self.trust_model, "extra_buffers": self.extra_buffers,
        }  # fmt: skip
        return FoundModels(path, arguments)


@dataclass(frozen=True)
class FoundModels:
    """Models that were found: the target's file, and what `SpeculativeLlama` and `Batch` are given with it."""

    path: Path
    arguments: Mapping[str, Any]


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


# -- opening -----------------------------------------------------------------------------------------------------------


def open_model(
    options: ModelOptions,
    drafts: DraftOptions = DraftOptions(),
    engine: Mapping[str, Any] | None = None,
) -> SpeculativeLlama:
    """Find and load what the options name; engine: those of llama.cpp (`engine_options`)."""
    models = options.find()
    engine = engine or {}
    hush_llama(bool(engine.get("verbose")))
    rule = {"verification": drafts.rule, "length": drafts.length}
    with busy(f"loading {models.path.stem}"):
        return SpeculativeLlama(
            models.path, **{**models.arguments, **rule, **engine_arguments(engine)}
        )
