"""Measures a pair: decode times, acceptance by position, what each plan would gain; records rounds and writes priors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from measure.pair import Measurement, draw, measure, say
from measure.pictures import can_draw
from measure.questions import load_questions, select
from measure.simulate import save_rounds

from pyspec.cli.command import command, option, tell
from pyspec.cli.consoles import run_progress, stdout_console
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.main import main
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, ModelOptions
from pyspec.engine.profiles import save_prior
from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store.watch import Watch

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)

MARGIN = DraftOptions(verify="margin")
"""Draft options for measuring; each mode sets its own rule and length."""


MODELS = "model draft companion trust_model ctx threads n_gpu_layers devices tensor_split"


@dataclass(frozen=True)
class PairOptions:
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
        help="Temperature of the measured answers.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=1.0), default=50.0,
        help="Time to measure, roughly.")
    prior: bool = option("Output", "--prior", is_flag=True,
        help="Write what was learned next to the draft, as a starting point for other machines.")
    plot: Path | None = option("Output", "--plot", type=FILE, help="Save a plot (svg, png, pdf).")
    rounds: Path | None = option("Output", "--rounds", type=FILE,
        help="Save the recorded rounds, for bench/replay.py.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of tables.")
    # fmt: on


@command()
def pair(options: PairOptions, models: ModelOptions, engine: EngineOptions) -> None:
    """Measure decode times on this machine and the acceptance of drafts."""
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
        if watch.busy(int(llm.n_threads)):
            tell(
                f"warning: meanwhile other programs used {watch.others():.1f} processors", err=True
            )
        _keep(llm, found, options)


def _keep(llm: SpeculativeLlama, found: Measurement, options: PairOptions) -> None:
    """Save what the options ask for."""
    for warning in found.figures.warnings:
        tell(f"warning: {warning}", err=True)
    if options.plot:
        draw(found.figures, options.plot)
    if options.rounds:
        save_rounds(options.rounds, found.answers)
    if options.prior:
        path = save_prior(llm.assembly.sides, found.learned)
        tell(f"prior written: {path.name}", err=True)


if __name__ == "__main__":
    main(command=pair, name="bench/pair.py")
