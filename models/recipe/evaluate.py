"""Step 4: how often a draft says what the target says, on questions that it never saw.

The target first answers every third question greedily (kept as a recording, so once is enough).
Then each draft is scored on those answers in torch, with the weights as they stand in its GGUF: what llama.cpp
computes up to its own rounding of activations (tests/models compares the two).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from models.recipe import scores, write
from models.recipe.eagle3 import read_head
from models.recipe.gguf_io import Source
from models.recipe.rows import Corpus, Recording
from models.recipe.student import read_student
from pyspec.errors import PyspecError, TrainingError
from pyspec.machine.files import file_sha256

DRAFTS = ("llama", "eagle3")  # architectures of drafts
Predict = Callable[[NDArray[Any], int], NDArray[np.int64]]


def questions(path: Path, every: int) -> list[tuple[int, str, str]]:
    """(line, category, first turn) of every `every`-th question of a Spec-Bench file."""
    try:
        lines = [json.loads(line) for line in path.read_text().strip().split("\n")]
        return [
            (i, str(line["category"]), str(line["turns"][0]))
            for i, line in enumerate(lines)
            if i % every == 0
        ]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise TrainingError(f"{path} is not a Spec-Bench file", str(error)) from error


def answers(
    target: Path, bench: Path, folder: Path, every: int, threads: int, layers: tuple[int, ...] = ()
) -> list[str]:
    """Record the target's greedy answers unless they are there; returns categories by line.

    `layers`: layers whose inputs an EAGLE-3 head reads.
    """
    found = questions(bench, every)
    # a group of like lengths computes well together
    queue = [(line, text) for line, _, text in sorted(found, key=lambda q: len(q[2]))]
    options = write.Options(slots=8, answer=128, longest_prompt=1856, warm=0.0, layers=layers)
    have = len(Recording(folder).sequences) - 1 if (folder / "sequences.bin").exists() else 0
    if have < len(found):
        write.write(target, folder, queue, None, options, threads)
    names = [""] * (max(line for line, _, _ in found) + 1)
    for line, category, _ in found:
        names[line] = category
    return names


def read_layers(drafts: tuple[Path, ...]) -> tuple[int, ...]:
    """The layers that the EAGLE-3 heads among `drafts` read; raises `TrainingError` when they differ."""
    fields = [Source(path, *DRAFTS).field("eagle3.target_layers") for path in drafts]
    found = {tuple(layers) for layers in fields if layers is not None}
    if len(found) > 1:
        raise TrainingError("the EAGLE-3 heads read different layers", "evaluate them one by one")
    return found.pop() if found else ()


class Replay:
    """Guesses of one draft; raises `TrainingError` when it speaks another vocabulary.

    `window`: how many of the prompt's last tokens it sees; 0: all.
    """

    def __init__(self, path: Path, target: Path, steps: int, window: int = 0) -> None:
        source, own = Source(path, *DRAFTS), Source(target)
        tokens = "tokenizer.ggml.tokens"
        if source.field(tokens) != own.field(tokens):
            raise TrainingError(f"{path} has another vocabulary than {target}", "export it again")
        eagle3 = source.architecture == "eagle3"
        self.student = read_head(source, own) if eagle3 else read_student(source)
        self.steps, self.window = steps, window

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def guess(self, rows: NDArray[Any], prompt: int) -> NDArray[np.int64]:
        """Guesses at the rows that predict the answer, at every draft step."""
        unseen = max(0, prompt - self.window) if self.window else 0
        rows, prompt = rows[unseen:], prompt - unseen
        tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
        features = torch.from_numpy(rows["features"].astype(np.float32))[None]
        outputs = self.student.rollout(tokens, features, self.steps)
        # output t says what follows token t + 1
        best = [self.student.logits(output[0, prompt - 2 :]).argmax(-1) for output in outputs]
        return np.stack([self.student.ids(places).numpy() for places in best])


def score_all(
    names: list[str], folder: Path, predictors: dict[str, Predict]
) -> dict[str, scores.Score]:
    """One score a predictor over all recorded answers."""
    corpus = Corpus([folder], 1 << 20, held_out=None)
    totals = {name: scores.Score() for name in predictors}
    for item in corpus.items:
        rows, prompt = corpus.sequence(item)
        source = int(corpus.recordings[item[0]].sequences[item[1]]["source"])
        for name, predict in predictors.items():
            totals[name].add(names[source], rows[prompt - 1 :], predict(rows, prompt))
    return totals


def show(totals: dict[str, scores.Score], console: Console) -> None:
    """The figures as tables: by category, accepted lengths, steps."""
    kinds = sorted({kind for score in totals.values() for kind in score.hits})
    table = Table("draft", "all", *kinds, title="share of positions with the target's choice")
    for name, score in totals.items():
        table.add_row(name, f"{score.share():.3f}", *(f"{score.share(k):.2f}" for k in kinds))
    console.print(table)
    lengths = Table("draft", "strict K=4", "K=8", "margin K=4", "K=8", "margin share", "by step")
    for name, score in totals.items():
        row = [f"{score.length(rule, k):.2f}" for rule in ("strict", "margin") for k in (4, 8)]
        steps = " ".join(f"{x:.3f}" for x in score.by_step())
        lengths.add_row(name, *row, f"{score.margin_share():.3f}", steps)
    console.print(lengths)


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--bench", type=click.Path(path_type=Path), required=True, help="Spec-Bench file.")
@click.option("--answers", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--draft", type=click.Path(path_type=Path), multiple=True, help="GGUF to score.")
@click.option("--every", default=3, show_default=True)
@click.option("--steps", default=4, show_default=True, help="Draft steps of an EAGLE-3 head.")
@click.option("--window", default=0, help="Of a prompt, a draft sees so many tokens; 0: all.")
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    target: Path, bench: Path, folder: Path, draft: tuple[Path, ...], every: int, steps: int, window: int,
    threads: int, json_path: Path | None,
) -> None:  # fmt: skip
    """Score drafts against TARGET's own greedy answers on BENCH."""
    try:
        names = answers(target, bench, folder, every, threads, read_layers(draft))
        predictors: dict[str, Predict] = {"lookup": partial(scores.lookup, steps=steps)}
        for path in draft:
            predictors[path.stem] = Replay(path, target, steps, window).guess
        totals = score_all(names, folder, predictors)
    except PyspecError as error:
        raise click.ClickException(str(error)) from error
    show(totals, Console(width=200))
    if json_path:
        files = {path.name: file_sha256(path) for path in (target, *draft)}
        drafters = {name: score.as_dict() for name, score in totals.items()}
        sys.path.append(str(Path(__file__).parents[2] / "bench"))
        from measure.records import commit  # noqa: PLC0415 - of the clone's programs

        made = {"commit": commit(), "files": files, "drafters": drafters}
        json_path.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
