"""Step 3: write a trained student as a GGUF that llama.cpp loads like any other.

The tokenizer and the chat template are the target's own. Q4_0 rounds every matrix with
compensation (see `headquant`), against the inputs that it meets on the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from pyspec.models.recipe import gguf_io, headquant, sidecar, start
from pyspec.models.recipe.corpus import Corpus
from pyspec.models.recipe.net import Shape, Student, coupling
from pyspec.models.recipe.rows import need_space
from torch import Tensor, nn

from pyspec.errors import TrainingError


def load_student(checkpoint: Path) -> tuple[Student, start.Head, dict[str, Any]]:
    """(student, its head, the whole checkpoint) of a training run."""
    try:
        state = torch.load(checkpoint, weights_only=False)
        student = Student(Shape(**state["shape"]))
        head = start.Head(**state["head"])
        student.load_state_dict(state["student"], strict=False)
    except (OSError, RuntimeError, KeyError, TypeError, EOFError) as error:
        raise TrainingError(
            f"{checkpoint} is not a checkpoint of this recipe", "run the train step first"
        ) from error
    start.load_head(student, head)
    return student.eval(), head, state


class Moments:
    """Mean of x x^T over the inputs x of every linear layer of a student."""

    def __init__(self, student: Student) -> None:
        self.sums: dict[str, NDArray[np.float64]] = {}
        self.counts: dict[str, int] = {}
        self.hooks = [
            layer.register_forward_pre_hook(self._hook(name))
            for name, layer in student.named_modules()
            if isinstance(layer, nn.Linear)
        ]

    def _hook(self, name: str) -> Any:
        def add(_: nn.Module, inputs: tuple[Tensor]) -> None:
            x = inputs[0].detach().float().reshape(-1, inputs[0].shape[-1])
            self.sums[name] = self.sums.get(name, 0.0) + (x.T @ x).double().numpy()
            self.counts[name] = self.counts.get(name, 0) + len(x)

        return add

    def take(self) -> dict[str, NDArray[np.float64]]:
        """The means, by the name of the layer; the hooks are gone afterwards."""
        for hook in self.hooks:
            hook.remove()
        return {name: total / self.counts[name] for name, total in self.sums.items()}


def input_moments(student: Student, corpus: Corpus, batches: int) -> dict[str, Any]:
    """Moments over a few batches, roll-outs included for a coupled student."""
    moments = Moments(student)
    with torch.no_grad():
        for number, batch in enumerate(corpus.batches(7, 0, 4096)):
            if number >= batches:
                break
            tokens = torch.from_numpy(batch.rows["token"].astype(np.int64))
            if student.shape.target_width:
                states = torch.from_numpy(batch.rows["state"].astype(np.float32))
                student.rollout(tokens, states, 2)
            else:
                student.states(tokens)
    return moments.take()


def four_bits(student: Student, head: start.Head, moments: dict[str, Any]) -> dict[str, Any]:
    """Q4_0 bytes by weight name, of the head and of every matrix in the blocks."""
    packed = {"embedding.weight": headquant.packed(head.values, head.scales)}
    for name, weight in student.state_dict().items():
        layer = name.removesuffix(".weight")
        if name.startswith("blocks.") and layer in moments:
            packed[name] = headquant.packed(
                *headquant.compensated(weight.float().numpy(), moments[layer])
            )
    return packed


def export(
    checkpoint: Path, target: Path, data: list[Path], out: Path, kind: str, name: str
) -> None:
    """Write `out` (and `out` with .npz for a coupled student) from a training run's checkpoint."""
    student, head, state = load_student(checkpoint)
    source = gguf_io.Source(target)
    need_space(out.parent, 4 * sum(p.numel() for p in student.parameters()))
    weights = {key: value.float().numpy() for key, value in student.state_dict().items()}
    if kind == "q4_0":
        corpus = Corpus(data, 448)
        packed = four_bits(student, head, input_moments(student, corpus, 6))
        gguf_io.write_gguf(out, source, state["shape"], weights, name, packed)
    else:
        plain = out if kind == "f32" else out.with_suffix(".f32")
        gguf_io.write_gguf(plain, source, state["shape"], weights, name)
        if kind != "f32":
            gguf_io.quantise(plain, out, kind)
            plain.unlink()
    if student.shape.target_width:
        w_h, w_s = (matrix.float().numpy() for matrix in coupling(student))
        sidecar.save(out.with_suffix(".npz"), w_h, w_s, source, out)


@click.command(name="export")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), required=True)
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), multiple=True, help="For q4_0.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="GGUF to write.")
@click.option("--kind", type=click.Choice(["q4_0", "q8_0", "f16", "f32"]), default="q4_0")
@click.option("--name", default="draft", show_default=True, help="general.name in the file.")
def main(
    run_folder: Path, target: Path, data: tuple[Path, ...], out: Path, kind: str, name: str
) -> None:
    """Write the student of a training run as a GGUF."""
    try:
        if kind == "q4_0" and not data:
            raise TrainingError("q4_0 needs --data", "give the recordings that were trained on")
        export(run_folder / "student.pt", target, list(data), out, kind, name)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB", err=True)


if __name__ == "__main__":
    main()
