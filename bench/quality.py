"""Says what accepting near misses costs in quality."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import click
from common import command_line
from compare import QuestionOptions, engine_words
from measure.quality import VARIANTS, QualityResults, conclusion, figures_of, unscored
from measure.quality_page import save_quality, variant_table
from measure.variants import SideBySide, Variant, answer_all, parse_variants

from pyspec.cli.command import command, tell
from pyspec.cli.main import main
from pyspec.cli.opening import find, hush_llama
from pyspec.cli.options import EngineOptions, ModelOptions
from pyspec.engine.models import SideOptions
from pyspec.screen import run_progress

_SIDES = (
    "n_ctx", "n_threads", "n_threads_batch", "n_gpu_layers", "devices", "trust", "extra_buffers",
    "n_cpu_moe",
)  # fmt: skip


@command()
@click.option(
    "--variants",
    default=None,
    help="Variants to compare, separated by commas; the first is the baseline.",
)
@click.option("--title", default="What the margin rule costs", help="Title of the page.")
def quality(
    asked: QuestionOptions,
    models: ModelOptions,
    engine: EngineOptions,
    variants: str | None,
    title: str,
) -> None:
    """Measure what near misses cost in quality; write runs.jsonl, README.md and quality.json to --out.

    Each question is answered by every variant. Variants are modes of `bench/compare.py`, and margin+random, margin+thin,
    plain+temp:T; @N uses only the first N questions. The page compares tokens a round, likelihood under the target
    and answers that loop, each with the first variant.
    """
    named, questions = parse_variants(variants or VARIANTS), asked.chosen()
    sides = _side_by_side(named, asked, models, engine)
    if sides.placed:
        tell(sides.placed, err=True)
    with closing(sides), run_progress() as report:
        records = answer_all(sides, questions, asked, asked.folder, report)
    figures = figures_of(records, questions)
    said = conclusion(figures, named)
    results = QualityResults(
        title, command_line("quality"), records[-1].setup, figures, said, unscored(questions)
    )
    save_quality(results, asked.folder)
    tell(variant_table(figures))
    tell(f"\n{said}")
    tell(f"results are in {asked.folder}", err=True)


def _side_by_side(
    variants: Sequence[Variant], asked: QuestionOptions, models: ModelOptions, engine: EngineOptions,
) -> SideBySide:  # fmt: skip
    """The variants with their models loaded: draft and target where the options say."""
    hush_llama(engine.verbose)
    path, found = find(replace(models.steady(), companion="none"))
    given = {name: found[name] for name in _SIDES} | engine.arguments
    kinds = given.pop("draft_type_k", None), given.pop("draft_type_v", None)
    side_options = SideOptions.of(
        found["draft_n_gpu_layers"], found["draft_devices"], kinds,
    )  # fmt: skip
    return SideBySide(
        str(path), found["draft"], variants, max_tokens=asked.max_tokens, seeds=asked.repeat,
        side_options=side_options, engine=engine_words(engine), **given,
    )  # fmt: skip


if __name__ == "__main__":
    main(command=quality, name="bench/quality.py")
