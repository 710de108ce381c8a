"""Compares speeds: answers questions in several modes, and with other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from common import command_line
from measure.bench import run_bench
from measure.questions import Question, load_questions, select
from measure.report import speed_table
from measure.tasks import Options, Task, parse_modes

from pyspec.cli.command import command, option, tell
from pyspec.cli.main import main
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, EngineOptions, ModelOptions
from pyspec.errors import OptionError
from pyspec.screen import run_progress

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)


@dataclass(frozen=True, kw_only=True)
class AskedOptions:
    """Which questions are asked, and how long and at what temperature each is answered."""

    # fmt: off
    questions: Path | None = option("Measuring", "--questions", type=FILE,
        help="Spec-Bench JSONL; if not given, the shipped set.")
    limit: int | None = option("Measuring", "--limit", type=COUNT, help="Most questions per category.")
    category: tuple[str, ...] = option("Measuring", "--category", multiple=True,
        help="Use only this category; may be repeated.")
    max_tokens: int = option("Measuring", "-n", "--max-tokens", type=click.IntRange(min=2), default=128,
        help="Longest answer, tokens.")
    temperature: float = option("Measuring", "--temp", type=click.FloatRange(min=0.0), default=0.0,
        help="Temperature; 0 always takes the likeliest token.")
    # fmt: on

    def chosen(self) -> list[Question]:
        """The questions that the options name."""
        return select(load_questions(self.questions), self.limit, self.category)


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(AskedOptions, Options):
    """How often each question is answered, from which seed on, and the folder of the results."""

    # fmt: off
    out: Path | None = option("Measuring", "--out", type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the results; an interrupted run resumes from it.")
    seed: int = option("Measuring", "--seed", default=1, help="Seed of the random draws.")
    repeat: int = option("Measuring", "--repeat", type=COUNT, default=1, help="Runs per question.")
    warm_up: int = option("Measuring", "--warm-up", type=click.IntRange(min=0), default=3,
        help="Answers before timing begins.")
    # fmt: on

    @property
    def folder(self) -> Path:
        """The folder of the results. Raises OptionError if none was named."""
        if self.out is None:
            raise OptionError("--out is missing", "name a folder for the results")
        return self.out


def engine_words(engine: EngineOptions) -> str:
    """The given options of llama.cpp as text for publication, without local folders."""
    given = engine.arguments
    if "lora_path" in given:
        given["lora_path"] = Path(given["lora_path"]).name
    return ", ".join(f"{name} {value}" for name, value in sorted(given.items()))


@dataclass(frozen=True)
class BenchOptions:
    """What is compared, and the page's title and text."""

    # fmt: off
    modes: str = option("Contenders", "--modes", default="plain,strict,margin", help="Modes to compare, separated by commas.")
    peers: str = option("Contenders", "--peers", default="",
        help="Other programs, separated by commas: llama_cpp[-lookup], server[-draft[:K]|-eagle3[:K]|-ngram].")
    server: Path | None = option("Contenders", "--server", type=FILE, help="The llama-server; if not given, that on PATH.")
    peer_draft: Path | None = option("Contenders", "--peer-draft", type=FILE,
        help="Draft GGUF for llama-server; if not given, the loaded one.")
    title: str = option("Page", "--title", default="Benchmark", help="Title of the page.")
    about: str = option("Page", "--about", default="", help="A paragraph below the title.")
    # fmt: on

    def task(self, asked: QuestionOptions, engine: EngineOptions) -> Task:
        """The task for `run_bench`. Raises OptionError for an unknown mode, or options that a peer would not get."""
        peers = [name.strip() for name in self.peers.split(",") if name.strip()]
        said = engine_words(engine)
        if peers and said:
            raise OptionError(
                f"peers would run without {said}", "leave out these options or --peers"
            )
        return Task(
            asked.chosen(), parse_modes(self.modes), asked, asked.folder, peers, self.server, self.peer_draft,
            self.title, self.about, command_line("compare"), said,
        )  # fmt: skip


@command()
def compare(
    compared: BenchOptions, asked: QuestionOptions, models: ModelOptions, engine: EngineOptions
) -> None:
    """Compare the speed of modes and of other programs; write runs.jsonl, README.md, results.json and plots to --out.

    A mode is one or more parts joined by +: plain, strict, margin/gap=G/theta=T, fixed:K,
    companion, auto, lookup, model, nothing, apart. If a run is interrupted, run the same command again to resume.
    """
    task = compared.task(asked, engine)
    # each mode sets its own rule and length
    opened = open_model(models.steady(), DraftOptions(verify="margin"), engine)
    with opened as llm, run_progress() as report:
        results = run_bench(llm, task, report, lambda note: tell(note, err=True))
    tell(speed_table(results.summaries))
    tell(f"results are in {asked.out}", err=True)


if __name__ == "__main__":
    main(command=compare, name="bench/compare.py")
