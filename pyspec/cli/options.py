"""Options that several subcommands share, and what they open."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pyspec.cli.command import model_names, option, stack
from pyspec.cli.engine import engine_arguments, hush_llama
from pyspec.cli.progress import busy, store_progress
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

model_options = stack(
    option(
        "-m",
        "--model",
        group="Models",
        metavar="NAME|FILE",
        shell_complete=model_names,
        help="Target: a name of `pyspec models list`, a file, NAME:TAG, OWNER/REPO[:TYPE] or a hub URL; the default "
        "target if not given.",
    ),
    option(
        "--draft",
        group="Models",
        aliases=("-md", "--model-draft", "--draft-model"),
        default="auto",
        show_default=True,
        metavar="auto|none|lookup|mtp|NAME|FILE",
        shell_complete=model_names,
        help="What proposes tokens: a model, the target's own next-token head (mtp), the text itself (lookup), two "
        "(lookup+NAME) or nothing. auto takes lookup and a head or draft that fits and is here.",
    ),
    option(
        "--companion",
        group="Models",
        default="none",
        show_default=True,
        metavar="none|auto|NAME|FILE",
        shell_complete=model_names,
        help="A second small model that says how much of a draft is worth checking; on the pairs measured it gained nothing.",
    ),
    option(
        "--trust-model",
        group="Models",
        is_flag=True,
        help="Skip the trial load of a model file seen for the first time.",
    ),
    option(
        "-c",
        "--ctx",
        group="Machine",
        aliases=("--ctx-size",),
        metavar="N",
        type=click.IntRange(min=16),
        default=4096,
        show_default=True,
        help="Context: tokens of prompt and answer together.",
    ),
    option(
        "-t",
        "--threads",
        group="Machine",
        metavar="N",
        type=click.IntRange(min=1),
        help="Threads; the physical cores if not given.",
    ),
    option(
        "-ngl",
        "--n-gpu-layers",
        group="Machine",
        aliases=("--gpu-layers",),
        type=LAYERS,
        default=0,
        help="Layers of the target on the GPU; all (or -1) for the whole model.",
    ),
    option(
        "--draft-ngl",
        group="Machine",
        aliases=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        type=LAYERS,
        help="The same for draft and companion; follows the target if not given.",
    ),
    option(
        "--extra-buffers",
        group="Machine",
        type=click.Choice(EXTRA_BUFFERS),
        default="auto",
        show_default=True,
        help="llama.cpp's own layouts of weights (AMX, repacking); auto: unless they crash here.",
    ),
)
"""Which models, and where they run."""

speculation_options = stack(
    option(
        "--verify",
        group="Drafts",
        type=click.Choice(["margin", "strict"]),
        default="strict",
        show_default=True,
        help="strict: the text is the target's own. margin: a drafted runner-up that the target ranks hardly lower "
        "is taken too, which is faster and changes the text.",
    ),
    option(
        "--theta",
        group="Drafts",
        type=float,
        default=Margin.theta,
        show_default=True,
        help="Margin: the two largest logits must have at least this ratio.",
    ),
    option(
        "--gap",
        group="Drafts",
        type=float,
        default=Margin.gap,
        show_default=True,
        help="Margin: largest difference of the two, nats; inf for none.",
    ),
    option(
        "--budget",
        group="Drafts",
        type=float,
        help="Margin: sum of gaps allowed in an answer, nats.",
    ),
    option("--cap", group="Drafts", type=int, help="Margin: relaxed tokens allowed in a row."),
    option(
        "--length",
        group="Drafts",
        default="auto",
        show_default=True,
        metavar="auto|companion|confidence:P|fixed:K",
        help="How many drafted tokens are checked at once; auto takes what pays on this machine, 0 included.",
    ),
    option(
        "--draft-max",
        group="Drafts",
        aliases=("--draft-n", "--spec-draft-n-max"),
        metavar="N",
        type=int,
        help="Longest draft, tokens.",
    ),
)
"""How drafts are chosen and accepted."""

sampling_options = stack(
    option(
        "--temp",
        group="Sampling",
        aliases=("--temperature",),
        type=float,
        default=0.8,
        show_default=True,
        help="Temperature: 0 takes the likeliest token, more varies.",
    ),
    option(
        "--top-k",
        group="Sampling",
        type=int,
        default=40,
        show_default=True,
        help="Choose among so many likeliest tokens; 0 for all.",
    ),
    option(
        "--top-p",
        group="Sampling",
        type=float,
        default=0.95,
        show_default=True,
        help="Choose among the likeliest tokens that together have this probability.",
    ),
    option(
        "--min-p",
        group="Sampling",
        type=float,
        default=0.05,
        show_default=True,
        help="Leave out tokens less likely than this share of the likeliest one.",
    ),
    option(
        "--repeat-penalty",
        group="Sampling",
        type=float,
        default=1.0,
        show_default=True,
        help="Make tokens of the last 64 less likely; 1 for no penalty.",
    ),
    option("--seed", group="Sampling", type=int, help="Seed of the sampler; random if not given."),
)
"""How the target chooses tokens."""


def verification(options: Mapping[str, Any]) -> Verification:
    """The rule that --verify, --theta, --gap, --budget and --cap describe; takes them out of nothing else."""
    margin = Margin(options["theta"], options["gap"], options["cap"], options["budget"])
    return Strict() if options["verify"] == "strict" else margin


def speculation(options: Mapping[str, Any]) -> Speculation:
    """The `Speculation` that the options describe."""
    return Speculation(True, verification(options), options["length"], options["draft_max"])


def sampling(options: Mapping[str, Any]) -> Sampling:
    """The `Sampling` that the options describe; a negative temperature is refused."""
    if not (options["temp"] >= 0 and math.isfinite(options["temp"])):
        raise OptionError(f"--temp is {options['temp']}", "use 0 for greedy, or up to about 2")
    seed = (
        options["seed"] if options["seed"] is not None else int.from_bytes(os.urandom(4), "little")
    )
    return Sampling(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        seed=seed & 0xFFFFFFFF,
    )


def find_models(options: Mapping[str, Any]) -> dict[str, Any]:
    """Find what `model_options` name: `model` as a path, `draft` and `companion` as words or paths."""
    with store_progress() as progress:
        path = resolve(options["model"], progress)
        words = {role: _found(options[role], progress) for role in ("draft", "companion")}
    return {"model": str(path), **words}


def open_model(options: Mapping[str, Any], **kwargs: Any) -> SpeculativeLlama:
    """Find and load what `model_options` and `speculation_options` name."""
    found = find_models(options)
    hush_llama(bool(options.get("verbose")))
    threads = options["threads"] or default_threads()
    with busy(f"loading {Path(found['model']).stem}"):
        return _load(options, found, threads, kwargs)


def _load(
    options: Mapping[str, Any], found: Mapping[str, Any], threads: int, kwargs: Mapping[str, Any]
) -> SpeculativeLlama:
    return SpeculativeLlama(
        found["model"],
        draft=found["draft"],
        companion=found["companion"],
        verification=verification(options),
        length=options["length"],
        draft_n_gpu_layers=options["draft_ngl"],
        n_ctx=options["ctx"],
        n_gpu_layers=options["n_gpu_layers"],
        n_threads=threads,
        n_threads_batch=threads,
        trust=options["trust_model"],
        extra_buffers=options["extra_buffers"],
        **{**engine_arguments(options), **kwargs},
    )


_WORDS = ("none", "auto", "lookup", "mtp", "lookup+mtp")


def _found(word: str, progress: Any) -> str:
    """A draft's word with its name turned into a path."""
    front, plus, name = word.partition("+")
    if word in _WORDS:
        return word
    return (
        f"{front}+{resolve(name, progress)}"
        if plus and front == "lookup"
        else str(resolve(word, progress))
    )
