"""Step 2: train a student on a recording.

The run's folder holds `student.pt` (the checkpoint, replaced in one move), `curve.csv` and
`curve.png`. Running the same command again goes on from the checkpoint.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from pyspec.models.recipe import losses, start
from pyspec.models.recipe.corpus import Corpus
from pyspec.models.recipe.gguf_io import Source
from pyspec.models.recipe.net import Shape
from pyspec.models.recipe.rows import file_sha256, need_space
from pyspec.models.recipe.trainer import Plan, Trainer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pyspec.errors import TrainingError


def answer_states(corpus: Corpus, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Up to `count` final states of rows that predict answers, for the head's factors."""
    found, have = [], 0
    for item in corpus.items:
        rows, prompt = corpus.sequence(item)
        found.append(rows["state"][prompt - 1 :].astype(np.float32))
        have += len(found[-1])
        if have >= count:
            break
    return np.concatenate(found)


def prepare(
    target: Path, corpus: Corpus, shape: dict[str, int], layers: list[int], coupled: bool,
    plan: Plan, folder: Path, begin: Path | None = None,
) -> Trainer:  # fmt: skip
    """A trainer at the folder's checkpoint, or at the start when there is none.

    `begin` is the folder of another run whose weights are taken where names and sizes agree, and
    whose head is taken whole: a coupled student learns soonest from a trained independent one.
    """
    if file_sha256(target) != corpus.meta.target_sha256:
        click.echo("note: the recording was written by another file of the target", err=True)
    source = Source(target)
    check_target(source, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, 200_000_000)
    checkpoint = folder / "student.pt"
    state = read_checkpoint(checkpoint) if checkpoint.exists() else None
    full = Shape(
        vocab=corpus.meta.n_vocab, **shape,
        rope_base=float(source.field("llama.rope.freq_base", 10000.0)),
        eps=float(source.field("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        target_width=corpus.meta.n_embd if coupled else 0,
    )  # fmt: skip
    if state is not None and state["shape"] != full.as_dict():
        raise TrainingError(f"{checkpoint} has other sizes", "give another --out")
    other = read_checkpoint(begin / "student.pt") if begin and state is None else None
    known = state or other
    head = (
        start.Head(**known["head"])
        if known is not None
        else start.make_head(source, answer_states(corpus, 120_000), shape["width"])
    )
    trainer = Trainer(
        start.make_student(source, head, full, layers, plan.seed), head, corpus, plan, folder
    )
    if other is not None:
        trainer.take_weights(other["student"])
    if state is not None:
        trainer.resume(state)
    return trainer


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A run's checkpoint; raises `TrainingError` when it is missing or damaged."""
    try:
        return dict(torch.load(path, weights_only=False))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"{path} cannot be read", "train again into another folder") from error


def check_target(source: Source, corpus: Corpus) -> None:
    """Raise `TrainingError` unless the recording's sizes are the target's."""
    vocab, width = source.tensor(source.output_name).shape
    if (vocab, width) != (corpus.meta.n_vocab, corpus.meta.n_embd):
        raise TrainingError(
            f"the recording has {corpus.meta.n_vocab} tokens and width {corpus.meta.n_embd}, "
            f"{source.path} has {vocab} and {width}",
            "give the target that the text was written with",
        )


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True, multiple=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of this run.")
@click.option("--width", default=256, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--heads", default=4, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
@click.option("--head", default=64, show_default=True, help="Width of one attention head.")
@click.option("--ff", default=768, show_default=True)
@click.option("--from-layers", default="", help="Layers of the target to start from, as 0,29.")
@click.option("--start-run", type=click.Path(path_type=Path), help="Run whose weights to take.")
@click.option("--coupled", is_flag=True, help="Feed the target's hidden states.")
@click.option("--rollout", default=3, show_default=True)
@click.option("--steps", default=2000, show_default=True)
@click.option("--minutes", default=0.0, help="End after so long, whatever --steps says.")
@click.option("--tokens", default=2048, show_default=True, help="Tokens a step.")
@click.option("--rate", default=1e-3, show_default=True)
@click.option("--state-weight", default=0.5, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--save-every", default=60.0, show_default=True, help="Seconds.")
def main(
    target: Path, data: tuple[Path, ...], out: Path, width: int, layers: int, heads: int,
    kv_heads: int, head: int, ff: int, from_layers: str, start_run: Path | None, coupled: bool, rollout: int,
    steps: int, minutes: float, tokens: int, rate: float, state_weight: float, seed: int, threads: int, save_every: float,
) -> None:  # fmt: skip
    """Train a student of TARGET on the recordings in DATA."""
    torch.set_num_threads(threads)
    weights = losses.Weights(state=state_weight)
    plan = Plan(
        steps=steps, minutes=minutes, tokens=tokens, rate=rate, rollout=rollout, seed=seed,
        weights=weights,
    )  # fmt: skip
    shape = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads}
    shape |= {"head": head, "ff": ff}
    copied = [int(number) for number in from_layers.split(",") if number]
    try:
        corpus = Corpus(list(data), plan.longest)
        trainer = prepare(target, corpus, shape, copied, coupled, plan, out, start_run)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            trainer.run(bar, save_every)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
