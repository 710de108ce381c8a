"""Records rounds of a pair: what would be drafted at every position of answers; writes them, and priors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from measure.pair import by_position, learned_from, record, save_prior
from measure.questions import load_questions, select
from measure.simulate import save_rounds

from pyspec.cli.command import command, option, tell
from pyspec.cli.consoles import run_progress
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.main import main
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, ModelOptions

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)

MARGIN = DraftOptions(verify="margin")
"""Draft options for recording, which verifies nothing."""


@dataclass(frozen=True)
class PairOptions:
    """What to record, for how long, and what to keep."""

    # fmt: off
    questions: Path | None = option("Recording", "--questions", type=FILE,
        help="Spec-Bench JSONL; if not given, the shipped set.")
    limit: int = option("Recording", "--limit", type=COUNT, default=1, help="Questions per category.")
    every: int = option("Recording", "--every", type=COUNT, default=1, help="Use only every N-th question.")
    max_tokens: int = option("Recording", "-n", "--max-tokens", type=click.IntRange(min=4), default=64,
        help="Longest answer, tokens.")
    kmax: int = option("Recording", "--draft-max", type=click.IntRange(1, 32), default=16, help="Longest draft, tokens.")
    temperature: float = option("Recording", "--temp", type=click.FloatRange(min=0.0), default=0.0,
        help="Temperature of the answers.")
    seconds: float = option("Recording", "--seconds", type=click.FloatRange(min=1.0), default=50.0, help="Time for it, roughly.")
    prior: bool = option("Output", "--prior", is_flag=True,
        help="Write what was learned next to the draft, as a starting point for other machines.")
    rounds: Path | None = option("Output", "--rounds", type=FILE, help="Save the recorded rounds, for bench/replay.py.")
    # fmt: on


@command()
def pair(options: PairOptions, models: ModelOptions, engine: EngineOptions) -> None:
    """Record what would be drafted at every position of answers, and print the acceptance by position."""
    chosen = select(load_questions(options.questions), options.limit, every=options.every)
    with open_model(models.steady(), MARGIN, engine) as llm:
        with run_progress() as report:
            answers = record(
                llm, chosen, kmax=options.kmax, max_tokens=options.max_tokens, budget_s=options.seconds,
                temperature=options.temperature, report=report,
            )  # fmt: skip
        tell(", ".join(f"{share:.3f}" for share in by_position(answers, options.kmax)))
        if options.rounds:
            save_rounds(options.rounds, answers)
        if options.prior:
            learned = learned_from(answers)
            path = save_prior(llm.assembly.sides, learned, coupled=options.temperature > 0.0)
            tell(f"prior written: {path.name}", err=True)


if __name__ == "__main__":
    main(command=pair, name="bench/pair.py")
