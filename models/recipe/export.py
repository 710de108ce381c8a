"""Step 3: write a trained student as a GGUF that llama.cpp loads like any other.

The tokenizer and the chat template are the target's own. Q4_0 rounds every matrix with
compensation (see `gguf_io`), against the inputs that it meets on the recording.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.recipe import eagle3, gguf_io
from models.recipe.gguf_io import Head
from models.recipe.rows import Corpus, need_space
from models.recipe.student import Shape, Student, load_head
from models.recipe.trainer import read_checkpoint
from pyspec.errors import TrainingError

Q = gguf.GGMLQuantizationType


def load_student(checkpoint: Path) -> tuple[Student, Head]:
    """The independent student of a training run, and its fixed embedding."""
    state = read_checkpoint(checkpoint)
    try:
        student = Student(Shape(**state["shape"]))
        head = Head(**state["head"])
        student.load_state_dict(state["student"], strict=False)
    except (RuntimeError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{checkpoint} is not a checkpoint of this recipe", "run the train step first"
        ) from error
    load_head(student, head)
    return student.eval(), head


def load_eagle3(checkpoint: Path, source: gguf_io.Source) -> eagle3.Eagle3:
    """The EAGLE-3 head of a training run, with the embeddings and the output rows of its target."""
    state = read_checkpoint(checkpoint)
    try:
        head = eagle3.Eagle3(eagle3.Eagle3Shape(**state["shape"]))
        head.load_state_dict(state["student"], strict=False)
    except (RuntimeError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{checkpoint} is not a checkpoint of an EAGLE-3 head", "train one with --eagle3"
        ) from error
    eagle3.borrow(head, source)
    return head.eval()


class Moments:
    """Mean of x x^T over the inputs x of every linear layer of a student."""

    def __init__(self, student: nn.Module) -> None:
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


def input_moments(student: Student | eagle3.Eagle3, corpus: Corpus, batches: int) -> dict[str, Any]:
    """Moments over a few batches, by the name of the layer; those of an EAGLE-3 head over two draft steps."""
    moments = Moments(student)
    with torch.no_grad():
        for batch in itertools.islice(corpus.batches(7, 0, 4096), batches):
            tokens = torch.from_numpy(batch.rows["token"].astype(np.int64))
            features = torch.from_numpy(batch.rows["features"].astype(np.float32))
            student.rollout(tokens, features, 2)
    return moments.take()


def as_stored(
    weights: Mapping[str, NDArray[Any]], kind: str, moments: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """What `gguf_io.write_gguf` takes: every matrix as `kind`, vectors in float32.

    q4_0: with compensation where `moments` has the matrix's inputs, elsewhere Q8_0.
    """
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        values = weight.astype(np.float32)
        wide = Q.F16 if kind == "f16" else Q.Q8_0
        if kind == "f32" or values.ndim < 2:
            found[name] = values
        elif kind == "q4_0" and name in moments:
            packed = gguf_io.packed(*gguf_io.compensated(values, moments[name]))
            found[name] = (Q.Q4_0, packed)
        else:
            found[name] = (wide, gguf.quantize(values, wide))
    return found


def export(
    checkpoint: Path, target: Path, data: list[Path], out: Path, kind: str, name: str
) -> None:
    """Write `out` from a training run's checkpoint."""
    source = gguf_io.Source(target)
    need_space(out.parent, 200_000_000)
    corpus = Corpus(data, 448) if kind == "q4_0" else None
    if "draft_vocab" in read_checkpoint(checkpoint)["shape"]:
        export_eagle3(load_eagle3(checkpoint, source), source, corpus, out, kind, name)
    else:
        export_student(*load_student(checkpoint), source, corpus, out, kind, name)


def export_student(
    student: Student, head: Head, source: gguf_io.Source, corpus: Corpus | None, out: Path,
    kind: str, name: str,
) -> None:  # fmt: skip
    """Write an independent student; in q4_0 its embedding as it was rounded before training."""
    named = gguf_io.gguf_name
    weights = {named(key): value.float().numpy() for key, value in student.state_dict().items()}
    moments = input_moments(student, corpus, 6) if corpus else {}
    by_name = {named(f"{layer}.weight"): moment for layer, moment in moments.items()}
    tensors = as_stored(weights, kind, by_name)
    if kind == "q4_0":
        tensors["token_embd.weight"] = (Q.Q4_0, gguf_io.packed(head.values, head.scales))
    gguf_io.write_gguf(out, source, student.shape.as_dict(), tensors, name, kind)


def export_eagle3(
    head: eagle3.Eagle3, source: gguf_io.Source, corpus: Corpus | None, out: Path,
    kind: str, name: str,
) -> None:  # fmt: skip
    """Write an EAGLE-3 head in llama.cpp's form.

    q4_0: the layer in Q4_0 with compensation, the output rows in Q8_0 (they decide most, see
    models/README.md), `fc` in float16 (its columns differ in size twentyfold, and a draft step has no part of it).
    """
    weights = eagle3.file_weights(head)
    moments = input_moments(head, corpus, 6) if corpus else {}
    layer = eagle3.LAYER_MATRICES.items()
    by_name = {there: moments[here] for there, here in layer if here in moments}
    tensors = as_stored(weights, kind, by_name)
    if kind != "f32":
        tensors["fc.weight"] = weights["fc.weight"].astype(np.float16)
    tensors["d2t"] = head.d2t.numpy()
    more: dict[str, Any] = {
        "target_layers": list(head.shape.target_layers),
        "target_hidden_size": head.shape.width,
    }
    gguf_io.write_gguf(out, source, head.shape.as_dict(), tensors, name, kind, "eagle3", more)


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
