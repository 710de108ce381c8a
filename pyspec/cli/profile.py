"""`pyspec profile`: measures how much drafts gain on this machine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from pyspec.cli.command import command, option, tell
from pyspec.cli.consoles import run_progress, stdout_console
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.opening import WORDS, open_model
from pyspec.cli.options import DraftOptions, ModelOptions
from pyspec.engine.profiles import forget, save_prior
from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.profiling.pictures import can_draw
from pyspec.profiling.profile import Measurement, PairFigures, apart, draw, measure, say, store
from pyspec.profiling.questions import load_questions, select
from pyspec.profiling.simulate import save_rounds
from pyspec.profiling.tensor_types import all_types, type_table
from pyspec.screen.progress import store_progress
from pyspec.screen.tables import print_table
from pyspec.screen.words import counted
from pyspec.store.drafts import candidates, made_for
from pyspec.store.fetch import convertible
from pyspec.store.locate import resolve
from pyspec.store.machine import default_threads
from pyspec.store.others import name_of, owners_name
from pyspec.store.sources import load_manifest
from pyspec.store.watch import Watch

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)

MARGIN = DraftOptions(verify="margin")
"""Draft options for measuring; each mode sets its own rule and length."""


MODELS = "model draft companion trust_model ctx threads n_gpu_layers devices tensor_split"


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure, for how long, and what to keep."""

    # fmt: off
    questions: Path | None = option("Measuring", "--questions", type=FILE,
        help="Spec-Bench JSONL; if not given, the shipped set.")
    limit: int = option("Measuring", "--limit", type=COUNT, default=1, help="Questions per category.")
    every: int = option("Measuring", "--every", type=COUNT, default=1, help="Use only every N-th question.")
    max_tokens: int = option("Measuring", "-n", "--max-tokens", type=click.IntRange(min=4), default=64,
        help="Longest answer, tokens.")
    kmax: int = option("Measuring", "--draft-max", type=click.IntRange(1, 32), default=16,
        help="Longest draft to measure, tokens.")
    temperature: float = option("Measuring", "--temp", type=click.FloatRange(min=0.0), default=0.0,
        help="Temperature of the measured answers; results for 0 and for higher values are stored separately.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=1.0), default=50.0,
        help="Time to measure, roughly.")
    forget: bool = option("Measuring", "--forget", is_flag=True,
        help="Instead, remove what was measured for this target, for example on a busy machine.")
    types: bool = option("Measuring", "--types", is_flag=True,
        help="Instead, measure speed, size and loss of each tensor type of the default model, or another that pyspec converts.")
    save: bool = option("Output", "--save/--no-save", default=True, help="Keep the profile for later runs.")
    prior: bool = option("Output", "--prior", is_flag=True,
        help="Write what was learned next to the draft, as a starting point for other machines.")
    plot: Path | None = option("Output", "--plot", type=FILE, help="Save a plot (svg, png, pdf).")
    rounds: Path | None = option("Output", "--rounds", type=FILE,
        help="Save the recorded rounds, for bench/replay.py.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of tables.")
    # fmt: on


@command(
    first="questions limit every max_tokens kmax temperature seconds forget types save prior plot rounds as_json "
    + MODELS
)
def profile(options: ProfileOptions, models: ModelOptions, engine: EngineOptions) -> None:
    """Measure decode times on this machine and the acceptance of drafts, and store them for later runs."""
    if options.types:
        _types(models, as_json=options.as_json)
        return
    if options.forget:
        _forget(models)
        return
    if options.plot and not can_draw():
        raise OptionError("--plot needs matplotlib", "pip install matplotlib")
    chosen = select(load_questions(options.questions), options.limit, every=options.every)
    with open_model(models.steady(), MARGIN, engine) as llm:
        watch = Watch()
        with run_progress() as report:
            found = measure(
                llm, chosen, kmax=options.kmax, max_tokens=options.max_tokens, budget_s=options.seconds,
                temperature=options.temperature, report=report,
            )  # fmt: skip
        if options.as_json:
            tell(msgspec.json.encode(found.figures))
        else:
            say(found.figures, stdout_console())
        busy = watch.busy(int(llm.n_threads))
        _keep(llm, found, options, watch.others() if busy else 0.0)
    if not options.as_json:
        tell(f"use: {next_command(found.figures, models)}")


def next_command(found: PairFigures, models: ModelOptions) -> str:
    """Return the command that the result suggests: with the draft if it pays, else lookup or none."""
    words = ["pyspec", "generate"]
    if models.model:
        words += ["-m", models.model]
    draft = models.draft
    if found.acceptance and found.auto < 1.0:
        draft = "lookup" if found.lookup_share > WORTH_LOOKING else "none"
    if draft != "auto":
        words += ["--draft", draft]
    return f"{shlex.join(words)} ..."


WORTH_LOOKING = 0.05
"""Share of positions that lookup must predict correctly before it is suggested."""


def _types(models: ModelOptions, *, as_json: bool) -> None:
    entry = convertible(models.model or load_manifest().default_target, "--types")
    with store_progress() as show, run_progress() as report:
        found = all_types(entry, models.threads or default_threads(), show, report)
    if as_json:
        tell(msgspec.json.encode(found))
    else:
        print_table(type_table(found), stdout_console())


def _forget(models: ModelOptions) -> None:
    target = resolve(models.model)
    drafts = [each.path for each in (*made_for(target), *candidates(target)) if each.path]
    named = models.draft.removeprefix("lookup+")
    if named not in WORDS:
        drafts.append(resolve(named))
    removed = counted(forget(target, drafts), "profile")
    tell(f"{name_of(target)}: {removed} removed, and its stored decode times", err=True)


def _keep(
    llm: SpeculativeLlama, found: Measurement, options: ProfileOptions, others: float
) -> None:
    """Save what the options ask for. others: processors that other programs used, if that disturbed the measurement, else 0."""
    for warning in found.figures.warnings:
        tell(f"warning: {warning}", err=True)
    if options.plot:
        draw(found.figures, options.plot)
    if options.rounds:
        save_rounds(options.rounds, found.answers)
    if options.prior:
        path = save_prior(llm.assembly.sides, found.learned)
        tell(f"prior written: {path.name}", err=True)
    if options.save:
        tell(stored(llm, found, others), err=True)


def stored(llm: SpeculativeLlama, found: Measurement, others: float) -> str:
    """Store the profile, or say why not."""
    if others:
        why = f"meanwhile other programs used {others:.1f} processors"
        return f"not stored: {why}; run it again when the machine is idle"
    if why := apart(llm, found):
        path = Path(llm.model_path)
        again = f"pyspec profile --forget -m {shlex.quote(owners_name(path) or str(path))}"
        return (
            f"not stored: it is {why}: one of them was measured on a busy machine. "
            f"Run it again; if that does not help, run `{again}`"
        )
    return f"profile stored: {store(llm, found).name}"
