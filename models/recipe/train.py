"""Step 2: train a student on a recording.

The run's folder holds `student.pt` (the checkpoint, replaced in one move), `curve.csv` and
`curve.png`. Running the same command again goes on from the checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from models.recipe import eagle3 as eagle
from models.recipe.gguf_io import Head, Source, make_head
from models.recipe.rows import Corpus, need_space
from models.recipe.student import Shape, StudentObjective, make_student
from models.recipe.trainer import Objective, Trainer, TrainingPlan, read_checkpoint
from pyspec.errors import TrainingError
from pyspec.machine.files import file_sha256


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


@dataclass(frozen=True)
class StudentOptions:
    """What to train.

    `sizes`: width, layers, heads, kv_heads, head, ff; `layers`: layers of the target to start from; `draft_vocab`: not 0
    for an EAGLE-3 head, and then how many ids it can say; `begin`: folder of another run whose weights are taken where names
    and sizes agree, and whose output matrix is taken whole.
    """

    sizes: dict[str, int]
    layers: tuple[int, ...] = ()
    draft_vocab: int = 0
    begin: Path | None = None


def prepare(
    target: Path, corpus: Corpus, wanted: StudentOptions, plan: TrainingPlan, folder: Path
) -> Trainer:
    """A trainer at the folder's checkpoint, or at the start when there is none."""
    if file_sha256(target) != corpus.meta.target_sha256:
        click.echo("note: the recording was written by another file of the target", err=True)
    source = Source(target)
    check_target(source, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, 200_000_000)
    checkpoint = folder / "student.pt"
    state = read_checkpoint(checkpoint) if checkpoint.exists() else None
    known = state or (read_checkpoint(wanted.begin / "student.pt") if wanted.begin else None)
    make = _eagle3 if wanted.draft_vocab else _student
    student, objective, fixed = make(source, corpus, wanted, plan, known)
    if state is not None and state["shape"] != student.shape.as_dict():
        raise TrainingError(f"{checkpoint} has other sizes", "give another --out")
    trainer = Trainer(student, objective, corpus, plan, folder, fixed)
    if state is not None:
        trainer.resume(state)
    elif known is not None:
        trainer.take_weights(known["student"])
    return trainer


def _sizes(source: Source, corpus: Corpus, wanted: StudentOptions) -> dict[str, Any]:
    """The sizes that are asked for, and what the target decides."""
    return {
        "vocab": corpus.meta.n_vocab,
        **{key: source.sizes()[key] for key in ("rope_base", "eps")},
        **wanted.sizes,
    }


Made = tuple[nn.Module, Objective, dict[str, Any]]
"""A student, its objective, and what every checkpoint keeps of them beside what is learned."""


def _student(
    source: Source, corpus: Corpus, wanted: StudentOptions, plan: TrainingPlan,
    known: dict[str, Any] | None,
) -> Made:  # fmt: skip
    shape = Shape(**_sizes(source, corpus, wanted))
    head = (
        make_head(source, answer_states(corpus, 120_000), shape.width)
        if known is None
        else Head(**known["head"])
    )
    student = make_student(source, head, shape, list(wanted.layers), plan.seed).to(_device())
    objective = StudentObjective(student, head.project, corpus, plan)
    return student, objective, {"head": asdict(head)}


def _eagle3(
    source: Source, corpus: Corpus, wanted: StudentOptions, plan: TrainingPlan,
    known: dict[str, Any] | None,
) -> Made:  # fmt: skip
    """The draft vocabulary is chosen once, from the text that there is at the start."""
    sizes = _sizes(source, corpus, wanted) | {"width": corpus.meta.n_embd, "layers": 1}
    layers = corpus.meta.layers
    shape = eagle.Eagle3Shape(**sizes, draft_vocab=wanted.draft_vocab, target_layers=layers)
    d2t = (
        eagle.draft_vocabulary(corpus, wanted.draft_vocab)
        if known is None
        else known["student"]["d2t"].cpu().numpy()
    )
    head = eagle.make_head(source, corpus, shape, d2t, plan.seed).to(_device())
    return head, eagle.Eagle3Objective(head, plan), {}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
@click.option("--eagle3", is_flag=True, help="Train an EAGLE-3 head (one layer, target's width).")
@click.option("--draft-vocab", default=8192, show_default=True, help="Ids an EAGLE-3 head can say.")
@click.option(
    "--rollout", default=4, show_default=True, help="Draft steps learned by an EAGLE-3 head."
)
@click.option("--steps", default=2000, show_default=True)
@click.option("--tokens", default=2048, show_default=True, help="Tokens a step.")
@click.option(
    "--joined", default=0.0, show_default=True, help="Batches of one long context, 0 to 1."
)
@click.option("--rate", default=1e-3, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
def main(
    target: Path, data: tuple[Path, ...], out: Path, width: int, layers: int, heads: int, kv_heads: int,
    head: int, ff: int, from_layers: str, start_run: Path | None, eagle3: bool, draft_vocab: int,
    rollout: int, steps: int, tokens: int, joined: float, rate: float, seed: int, threads: int,
) -> None:  # fmt: skip
    """Train a student of TARGET on the recordings in DATA."""
    torch.set_num_threads(threads)
    plan = TrainingPlan(
        steps=steps,
        tokens=tokens,
        joined=joined,
        rate=rate,
        rollout=rollout,
        seed=seed,
    )
    sizes = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads}
    sizes |= {"head": head, "ff": ff}
    copied = tuple(int(number) for number in from_layers.split(",") if number)
    wanted = StudentOptions(sizes, copied, draft_vocab if eagle3 else 0, start_run)
    try:
        trainer = prepare(target, Corpus(list(data), plan.longest), wanted, plan, out)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            trainer.run(bar)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
