"""Options that several subcommands share, and what they open."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from pyspec.cli.progress import store_progress
from pyspec.errors import OptionError
from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.rules import Margin, Strict, Verification
from pyspec.sampling import Sampling
from pyspec.store import resolve
from pyspec.store.machine import EXTRA_BUFFERS

F = TypeVar("F", bound=Callable[..., Any])


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


model_options = _stack(
    click.option(
        "-m", "--model", metavar="NAME|PATH", help="Target model; the default target if not given."
    ),
    click.option(
        "--draft",
        default="auto",
        show_default=True,
        metavar="none|lookup|NAME|PATH|auto",
        help="What drafts.",
    ),
    click.option(
        "--companion",
        default="auto",
        show_default=True,
        metavar="none|auto|NAME|PATH",
        help="Judges drafts.",
    ),
    click.option(
        "-c",
        "--ctx",
        type=click.IntRange(min=16),
        default=4096,
        show_default=True,
        help="Context, tokens.",
    ),
    click.option(
        "-t",
        "--threads",
        type=click.IntRange(min=1),
        help="Threads; the physical cores if not given.",
    ),
    click.option(
        "-ngl",
        "--n-gpu-layers",
        type=int,
        default=0,
        help="Layers of the target on the GPU; -1 for all.",
    ),
    click.option(
        "--draft-ngl",
        type=int,
        help="The same for draft and companion; follows the target if not given.",
    ),
    click.option(
        "--extra-buffers",
        type=click.Choice(EXTRA_BUFFERS),
        default="auto",
        show_default=True,
        help="llama.cpp's own layouts of weights (AMX, repacking); auto: unless they crash here.",
    ),
    click.option(
        "--trust-model",
        is_flag=True,
        help="Skip the trial load of a model file seen for the first time.",
    ),
)
"""Which models, and where they run."""

speculation_options = _stack(
    click.option(
        "--verify", type=click.Choice(["margin", "strict"]), default="strict", show_default=True
    ),
    click.option(
        "--theta",
        type=float,
        default=Margin.theta,
        show_default=True,
        help="Margin: z2/z1 must exceed this.",
    ),
    click.option(
        "--gap",
        type=float,
        default=Margin.gap,
        show_default=True,
        help="Margin: largest gap, nats; inf.",
    ),
    click.option("--budget", type=float, help="Margin: sum of gaps allowed in an answer, nats."),
    click.option("--cap", type=int, help="Margin: relaxed tokens allowed in a row."),
    click.option(
        "--length", default="auto", show_default=True, metavar="auto|companion|confidence:P|fixed:K"
    ),
    click.option("--draft-max", type=int, help="Longest draft, tokens."),
)
"""How drafts are chosen and accepted."""

sampling_options = _stack(
    click.option(
        "--temp", type=float, default=0.8, show_default=True, help="Temperature; 0 is greedy."
    ),
    click.option("--top-k", type=int, default=40, show_default=True),
    click.option("--top-p", type=float, default=0.95, show_default=True),
    click.option("--min-p", type=float, default=0.05, show_default=True),
    click.option("--repeat-penalty", type=float, default=1.0, show_default=True),
    click.option("--seed", type=int, help="Seed of the sampler; random if not given."),
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
    threads = options["threads"] or physical_cores()
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
        **kwargs,
    )


_WORDS = ("none", "auto", "lookup")


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


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted: they add nothing to matrix products."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    smt = Path("/sys/devices/system/cpu/smt/active")
    shared = smt.is_file() and smt.read_text().strip() == "1"
    return max(1, cores // 2 if shared else cores)
