"""Records rounds of a pair: what would be drafted at every position of answers; writes them, and priors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from compare import FILE, AskedOptions
from measure.pair import by_position, learned_from, record, save_prior
from measure.simulate import save_rounds

from pyspec.cli.command import command, option, tell
from pyspec.cli.main import main
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, EngineOptions, ModelOptions
from pyspec.screen import run_progress

MARGIN = DraftOptions(verify="margin")
"""Draft options for recording, which verifies nothing."""


@dataclass(frozen=True)
class PairOptions:
    """What to record, for how long, and what to keep."""

    # fmt: off
    kmax: int = option("Recording", "--draft-max", type=click.IntRange(1, 32), default=16, help="Longest draft, tokens.")
    seconds: float = option("Recording", "--seconds", type=click.FloatRange(min=1.0), default=50.0, help="Time for it, roughly.")
    prior: bool = option("Output", "--prior", is_flag=True,
        help="Write what was learned next to the draft, as a starting point for other machines.")
    rounds: Path | None = option("Output", "--rounds", type=FILE, help="Save the recorded rounds, for bench/replay.py.")
    # fmt: on


@command()
def pair(
    options: PairOptions, asked: AskedOptions, models: ModelOptions, engine: EngineOptions
) -> None:
    """Record what would be drafted at every position of answers, and print the acceptance by position."""
    with open_model(models.steady(), MARGIN, engine) as llm:
        with run_progress() as report:
            answers = record(
                llm, asked.chosen(), kmax=options.kmax, max_tokens=asked.max_tokens, budget_s=options.seconds,
                temperature=asked.temperature, report=report,
            )  # fmt: skip
        tell(", ".join(f"{share:.3f}" for share in by_position(answers, options.kmax)))
        if options.rounds:
            save_rounds(options.rounds, answers)
        if options.prior:
            learned = learned_from(answers)
            path = save_prior(llm.assembly.parts.sides, learned, coupled=asked.temperature > 0.0)
            tell(f"prior written: {path.name}", err=True)


if __name__ == "__main__":
    main(command=pair, name="bench/pair.py")
