"""`pyspec bench`, `quality` and `profile`: questions answered in several modes, and what this machine and a draft are worth."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from pyspec.cli.command import command, option, tell
from pyspec.cli.engine_options import EngineOptions, hush_llama
from pyspec.cli.options import DraftOptions, ModelOptions, open_model
from pyspec.cli.streams import run_progress, stdout_console
from pyspec.display import counted
from pyspec.engine.models import Placement
from pyspec.errors import OptionError
from pyspec.llama import SpeculativeLlama
from pyspec.measure.bench import run_bench
from pyspec.measure.bounds import CANDIDATES, HalvesResult, by_halves, demand_enough, sentence
from pyspec.measure.costs import all_types, type_table
from pyspec.measure.profile import Measurement, PairFigures, apart, draw, measure, say, store
from pyspec.measure.quality import (
    VARIANTS,
    QualityResults,
    judge,
    save_quality,
    unscored,
    variant_table,
    verdict,
)
from pyspec.measure.records import RunRecord, describe, published
from pyspec.measure.report import Results, can_draw, card, speed_table
from pyspec.measure.simulate import save_rounds
from pyspec.measure.tasks import Options, Question, Task, load_questions, parse_modes, select
from pyspec.measure.variants import SideBySide, Variant, answer_all, parse_variants
from pyspec.profiles import forget, save_prior
from pyspec.progress import store_progress
from pyspec.store.files import cache_dir, file_sha256
from pyspec.store.locate import resolve
from pyspec.store.machine import default_threads
from pyspec.store.sources import load_manifest
from pyspec.store.watch import Watch
from pyspec.tables import print_table
from pyspec.verdicts import PairVerdict, keep_verdict, settings_of

FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(min=1)

MARGIN = DraftOptions(verify="margin")
"""What is opened for measuring; each mode sets its own rule and length."""


@dataclass(frozen=True, kw_only=True)
class AskedOptions(Options):
    """Which questions, how each is answered, and the folder of the results."""

    # fmt: off
    out: Path | None = option("Measuring", "--out", type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the results; an interrupted run resumes from it.")
    questions: Path | None = option("Measuring", "--questions", type=FILE,
        help="Spec-Bench JSONL; if not given, the shipped set.")
    limit: int | None = option("Measuring", "--limit", type=_COUNT, help="Most questions per category.")
    every: int = option("Measuring", "--every", type=_COUNT, default=1, help="Use only every N-th question of the file.")
    category: tuple[str, ...] = option("Measuring", "--category", multiple=True,
        help="Use only this category; may be repeated.")
    max_tokens: int = option("Measuring", "-n", "--max-tokens", type=click.IntRange(min=2), default=128,
        help="Longest answer, tokens.")
    temperature: float = option("Measuring", "--temp", type=click.FloatRange(min=0.0), default=0.0,
        help="Temperature; 0 always takes the likeliest token.")
    seed: int = option("Measuring", "--seed", default=1, help="Seed of the random draws.")
    repeat: int = option("Measuring", "--repeat", type=_COUNT, default=1, help="Runs per question.")
    warm_up: int = option("Measuring", "--warm-up", type=click.IntRange(min=0), default=3,
        help="Answers before timing begins.")
    # fmt: on

    @property
    def folder(self) -> Path:
        """Where the results go. Raises OptionError where none was named."""
        if self.out is None:
            raise OptionError("--out is missing", "name a folder for the results")
        return self.out

    def chosen(self) -> list[Question]:
        """The questions that the options name."""
        return select(load_questions(self.questions), self.limit, self.category, self.every)


def command_line() -> str:
    """The command as it may be published: folders of this machine and the page's own text are left out."""
    words = sys.argv[1:]
    if "--about" in words:
        at = words.index("--about")
        words = [*words[:at], *words[at + 2 :]]
    return published("pyspec", words)


MODES = "plain,strict,margin"
CARD_QUESTIONS = 2
"""Questions of each category that a card is made of."""


@dataclass(frozen=True)
class BenchOptions:
    """What is compared, and the page's own words."""

    # fmt: off
    modes: str = option("Contenders", "--modes", default=MODES, help="Modes to compare, separated by commas.")
    card: bool = option("Contenders", "--card", is_flag=True,
        help="Instead, print one row to paste into an issue: plain and strict on some questions; --out is not needed.")
    peers: str = option("Contenders", "--peers", default="",
        help="Other programs, separated by commas: llama_cpp[-lookup], server[-draft[:K]|-eagle3[:K]|-ngram].")
    server: Path | None = option("Contenders", "--server", type=FILE, help="The llama-server; if not given, that on PATH.")
    peer_draft: Path | None = option("Contenders", "--peer-draft", type=FILE,
        help="Draft GGUF for llama-server; if not given, the loaded one.")
    title: str = option("Page", "--title", default="Benchmark", help="Title of the page.")
    about: str = option("Page", "--about", default="", help="A paragraph below the title.")
    # fmt: on

    def task(self, asked: AskedOptions, engine: EngineOptions) -> Task:
        """As `run_bench` takes it. Raises OptionError for what is no mode, or would not hold for a peer."""
        peers = [name.strip() for name in self.peers.split(",") if name.strip()]
        if peers and engine.said:
            raise OptionError(
                f"peers would run without {engine.said}", "leave out these or --peers"
            )
        return Task(
            asked.chosen(), parse_modes(self.modes), asked, asked.folder, peers, self.server, self.peer_draft,
            self.title, self.about, command_line(), engine.said,
        )  # fmt: skip


_MODELS = "model draft companion trust_model ctx threads n_gpu_layers devices tensor_split"
_ASKED = "out questions limit every category max_tokens temperature seed repeat warm_up"


@command(first=f"modes card peers server peer_draft title about {_ASKED} {_MODELS}")
def bench(
    compared: BenchOptions, asked: AskedOptions, models: ModelOptions, engine: EngineOptions
) -> None:
    """Compare the speed of modes and of other programs; write runs.jsonl, README.md, results.json and plots to --out.

    A mode is one or more parts joined by +: plain, strict, margin/gap=G/theta=T, fixed:K, confidence:P,
    companion, auto, lookup, model, nothing, apart. If a run is interrupted, run the same command again to resume.
    """
    if compared.card:
        _card(compared, asked, models, engine)
        return
    results = _compared(compared, asked, models, engine)
    print_table(speed_table(results.summaries), stdout_console())
    tell(f"results are in {asked.out}", err=True)


def _card(
    compared: BenchOptions, asked: AskedOptions, models: ModelOptions, engine: EngineOptions
) -> None:
    """Print the card; its runs are kept where a folder was named."""
    modes = "plain,strict" if compared.modes == MODES else compared.modes
    with TemporaryDirectory() as folder:
        shorter = replace(asked, out=asked.out or Path(folder), limit=asked.limit or CARD_QUESTIONS)
        results = _compared(replace(compared, modes=modes), shorter, models, engine)
    tell(card(results).markdown)


def _compared(
    compared: BenchOptions, asked: AskedOptions, models: ModelOptions, engine: EngineOptions
) -> Results:
    task = compared.task(asked, engine)
    with open_model(models.steady(), MARGIN, engine) as llm, run_progress() as report:
        return run_bench(llm, task, report, lambda note: tell(note, err=True))


_SIDES = (
    "n_ctx", "n_threads", "n_threads_batch", "n_gpu_layers", "devices", "trust", "extra_buffers",
)  # fmt: skip


@command(first=f"variants title wanted {_ASKED} {_MODELS}")
@click.option(
    "--variants",
    default=None,
    help="Variants to compare, separated by commas; the first is the baseline.",
)
@click.option("--title", default="What the margin rule costs", help="Title of the page.")
@click.option(
    "--verdict",
    "wanted",
    is_flag=True,
    help="Decide what --verify auto does with this pair: choose a rule on half of the questions, confirm it on the others, "
    "and store the result. Needs no --out.",
)
def quality(
    asked: AskedOptions,
    models: ModelOptions,
    engine: EngineOptions,
    variants: str | None,
    title: str,
    *,
    wanted: bool,
) -> None:
    """Measure what near misses cost in quality; write runs.jsonl, README.md and quality.json to --out.

    Each question is answered by every variant. Variants are modes of `pyspec bench`, and margin+random, margin+thin,
    plain+temp:T; @N uses only the first N questions. The page compares tokens per pass, likelihood under the target,
    answers that loop and answers that fail a check, each with the first variant.
    """
    listed = variants or (CANDIDATES if wanted else VARIANTS)
    named, questions = parse_variants(listed), asked.chosen()
    if wanted and (told := demand_enough(questions)):
        tell(told, err=True)
    folder = None if wanted and asked.out is None else asked.folder
    sides = _side_by_side(named, asked, models, engine)
    if sides.placed:
        tell(sides.placed, err=True)
    with closing(sides), run_progress() as report:
        folder = folder or _kept_in(sides, asked, questions)
        records = answer_all(sides, questions, asked, folder, report)
    figures = judge(records, questions)
    said = verdict(figures, named)
    results = QualityResults(
        title, command_line(), records[-1].setup, figures, said, unscored(questions)
    )
    save_quality(results, folder)
    print_table(variant_table(figures), stdout_console())
    tell(f"\n{said}")
    tell(f"results are in {folder}", err=True)
    if wanted:
        found = by_halves(records, questions, named)
        tell(f"\n{sentence(found)}")
        tell(f"stored in {_keep_verdict(found, sides, records, named)}", err=True)


def _side_by_side(
    variants: Sequence[Variant], asked: AskedOptions, models: ModelOptions, engine: EngineOptions
) -> SideBySide:
    """The variants with their models loaded, draft and target where the options say."""
    hush_llama(engine.verbose)
    path, found = replace(models.steady(), companion="none").find()
    given = {name: found[name] for name in _SIDES} | engine.arguments
    kinds = (given.pop(name, None) for name in ("draft_type_k", "draft_type_v"))
    placement = Placement(found["draft_n_gpu_layers"], found["draft_devices"], None, *kinds)
    return SideBySide(
        str(path), found["draft"], variants, max_tokens=asked.max_tokens, seeds=asked.repeat,
        placement=placement, engine=engine.said, **given,
    )  # fmt: skip


def _kept_in(sides: SideBySide, asked: AskedOptions, questions: Sequence[Question]) -> Path:
    """The cache's folder of these answers: one for each setup, so that a run goes on where it was interrupted."""
    files = sides.models.files
    setup = describe(sides.target, files, asked, questions, sides.n_ctx, sides.engine)
    same = msgspec.json.encode(msgspec.structs.replace(setup, day=""))
    name = f"{files['target'].stem}-{hashlib.sha256(same).hexdigest()[:16]}"
    return cache_dir() / "quality" / name


def _keep_verdict(
    found: HalvesResult,
    sides: SideBySide,
    records: Sequence[RunRecord],
    variants: Sequence[Variant],
) -> Path:
    """Store a verdict with the pair. Raises OptionError where the target has no draft."""
    if "draft" not in sides.models.files:
        raise OptionError("a verdict needs a draft model", "name one with --draft")
    tried = found.confirmed
    rule = next((v.margin for v in variants if tried is not None and v.name == tried.who), None)
    return keep_verdict(
        PairVerdict(
            target=file_sha256(sides.models.files["target"]),
            draft=file_sha256(sides.models.files["draft"]),
            drawn=records[-1].setup.temperature > 0.0,
            rule=settings_of(rule) if rule is not None and found.passed else None,
            tried=tried.who if tried is not None else "",
            gain=tried.gain if tried is not None else 1.0,
            answers=sum(record.who == variants[0].name for record in records),
            losses={n: (loss.upper, loss.bound) for n, loss in tried.losses.items()}
            if tried
            else {},
            day=records[-1].setup.day,
        )
    )


# -- the profile -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured for how long, and what becomes of it."""

    # fmt: off
    questions: Path | None = option("Measuring", "--questions", type=FILE,
        help="Spec-Bench JSONL; if not given, the shipped set.")
    limit: int = option("Measuring", "--limit", type=_COUNT, default=1, help="Questions per category.")
    every: int = option("Measuring", "--every", type=_COUNT, default=1, help="Use only every N-th question.")
    max_tokens: int = option("Measuring", "-n", "--max-tokens", type=click.IntRange(min=4), default=64,
        help="Longest answer, tokens.")
    kmax: int = option("Measuring", "--draft-max", type=click.IntRange(1, 32), default=16,
        help="Longest draft to measure, tokens.")
    temperature: float = option("Measuring", "--temp", type=click.FloatRange(min=0.0), default=0.0,
        help="Temperature of the answers to learn from; 0 and higher values are stored separately.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=1.0), default=50.0,
        help="Time to measure, roughly.")
    forget: bool = option("Measuring", "--forget", is_flag=True,
        help="Instead, remove what was measured for this target, such as on a busy machine.")
    types: bool = option("Measuring", "--types", is_flag=True,
        help="Instead, measure speed, size and loss of each tensor type of a known model.")
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
    + _MODELS
)
def profile(asked: ProfileOptions, models: ModelOptions, engine: EngineOptions) -> None:
    """Measure what decodes cost here and how often drafts are right, and store it for later runs."""
    if asked.types:
        _types(models, as_json=asked.as_json)
        return
    if asked.forget:
        _forget(models)
        return
    if asked.plot and not can_draw():
        raise OptionError("--plot needs matplotlib", "pip install 'pyspec-llama[plot]'")
    chosen = select(load_questions(asked.questions), asked.limit, every=asked.every)
    with open_model(models.steady(), MARGIN, engine) as llm:
        watch = Watch()
        with run_progress() as report:
            found = measure(
                llm, chosen, kmax=asked.kmax, max_tokens=asked.max_tokens, budget_s=asked.seconds,
                temperature=asked.temperature, report=report,
            )  # fmt: skip
        if asked.as_json:
            tell(msgspec.json.encode(found.figures))
        else:
            say(found.figures, stdout_console())
        busy = watch.busy(int(llm.n_threads))
        _keep(llm, found, asked, watch.others() if busy else 0.0)
    if not asked.as_json:
        tell(f"use: {next_command(found.figures, models)}")


def next_command(found: PairFigures, models: ModelOptions) -> str:
    """The command that uses what was found: with the draft where it pays, else with what does."""
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
"""Share of positions where the text's own continuation must be right for lookup to be worth naming."""


def _types(models: ModelOptions, *, as_json: bool) -> None:
    manifest = load_manifest()
    name = models.model or manifest.default_target
    if (entry := manifest.get(name)) is None:
        raise OptionError(
            f"--types works only for known models, and {name} is not one",
            "`pyspec models list` shows them",
        )
    with store_progress() as show, run_progress() as report:
        found = all_types(entry, models.threads or default_threads(), show, report)
    if as_json:
        tell(msgspec.json.encode(found))
    else:
        print_table(type_table(found), stdout_console())


def _forget(models: ModelOptions) -> None:
    target = resolve(models.model)
    removed = counted(forget(target), "profile")
    tell(f"{target.stem}: {removed} removed, and the stored decode times", err=True)


def _keep(llm: SpeculativeLlama, found: Measurement, asked: ProfileOptions, others: float) -> None:
    """What was asked to be kept of it. others: processors that other programs took, where that disturbed the measurement."""
    for warning in found.figures.warnings:
        tell(f"warning: {warning}", err=True)
    if asked.plot:
        draw(found.figures, asked.plot)
    if asked.rounds:
        save_rounds(asked.rounds, found.answers)
    if asked.prior:
        path = save_prior(llm.assembly.sides, found.learned)
        tell(f"prior written: {path.name}", err=True)
    if asked.save:
        tell(stored(llm, found, others), err=True)


def stored(llm: SpeculativeLlama, found: Measurement, others: float) -> str:
    """Keep the profile, or say why it is not kept."""
    if others:
        why = f"other programs took {others:.1f} processors meanwhile"
        return f"not stored: {why}; run it again when the machine is quiet"
    if why := apart(llm, found):
        return f"not stored: {why}; run it again, or `--forget` the old ones first"
    return f"profile stored: {store(llm, found).name}"
