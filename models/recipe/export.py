"""Step 3: write a trained student as a GGUF that llama.cpp loads like any other.

The tokenizer and the chat template are the target's own. Q4_0 rounds every matrix with
compensation (see `gguf_io`), against the inputs that it meets on the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from pyspec.models.recipe import eagle3, gguf_io
from pyspec.models.recipe.net import Head, Shape, Student, load_head
from pyspec.models.recipe.rows import Corpus, need_space
from pyspec.models.recipe.trainer import read_checkpoint
from torch import Tensor, nn

from pyspec.errors import TrainingError

Q = gguf.GGMLQuantizationType


def load_student(checkpoint: Path) -> tuple[Student, Head, dict[str, Any]]:
    """(student, its head, the whole checkpoint) of a training run of a `net.Student`."""
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
    return student.eval(), head, state


def load_eagle3(checkpoint: Path, source: gguf_io.Source) -> eagle3.Eagle3:
    """The EAGLE-3 head of a training run, with the embeddings and the output rows of its target."""
    state = read_checkpoint(checkpoint)
    try:
        head = eagle3.Eagle3(eagle3.EagleShape(**state["shape"]))
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
    """Moments over a few batches, roll-outs included for an EAGLE-3 head."""
    moments = Moments(student)
    with torch.no_grad():
        for number, batch in enumerate(corpus.batches(7, 0, 4096)):
            if number >= batches:
                break
            tokens = torch.from_numpy(batch.rows["token"].astype(np.int64))
            if isinstance(student, eagle3.Eagle3):
                features = torch.from_numpy(batch.rows["features"].astype(np.float32))
                for output in student.rollout(tokens, features, 2):
                    student.head(student.norm(output))
            else:
                student.states(tokens)
    return moments.take()


def four_bits(weights: Mapping[str, NDArray[Any]], moments: dict[str, Any]) -> dict[str, Any]:
    """Q4_0 bytes by weight name, of every matrix whose inputs were measured."""
    packed = {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if layer in moments:
            values = gguf_io.compensated(weight.astype(np.float32), moments[layer])
            packed[name] = (Q.Q4_0, gguf_io.packed(*values))
    return packed


def export(
    checkpoint: Path, target: Path, data: list[Path], out: Path, kind: str, name: str
) -> None:
    """Write `out` from a training run's checkpoint."""
    state, source = read_checkpoint(checkpoint), gguf_io.Source(target)
    need_space(out.parent, 200_000_000)
    if "draft_vocab" in state["shape"]:
        export_eagle3(load_eagle3(checkpoint, source), source, data, out, kind, name)
    else:
        export_student(checkpoint, source, data, out, kind, name)


def export_student(
    checkpoint: Path, source: gguf_io.Source, data: list[Path], out: Path, kind: str, name: str
) -> None:
    """Write a `net.Student`."""
    student, head, state = load_student(checkpoint)
    weights = {key: value.float().numpy() for key, value in student.state_dict().items()}
    tensors: dict[str, Any] = {}
    if kind == "q4_0":
        moments = input_moments(student, Corpus(data, 448), 6)
        blocks = {key: value for key, value in weights.items() if key.startswith("blocks.")}
        tensors = four_bits(blocks, moments)
        tensors["embedding.weight"] = (Q.Q4_0, gguf_io.packed(head.values, head.scales))
    tensors = {gguf_io.gguf_name(key): value for key, value in {**weights, **tensors}.items()}
    plain = out if kind in ("f32", "q4_0") else out.with_suffix(".f32")
    gguf_io.write_gguf(plain, source, state["shape"], tensors, name)
    if plain != out:
        gguf_io.quantise(plain, out, kind)
        plain.unlink()


def export_eagle3(
    head: eagle3.Eagle3, source: gguf_io.Source, data: list[Path], out: Path, kind: str, name: str
) -> None:
    """Write an EAGLE-3 head in llama.cpp's form.

    q4_0: the layer in Q4_0 with compensation, the output rows in Q8_0 (they decide most, see
    models/README.md), `fc` in float16 (its columns differ in size twentyfold, and a draft step has no part of it).
    """
    weights = eagle3.file_weights(head)
    tensors: dict[str, Any] = {key: value.astype(np.float32) for key, value in weights.items()}
    if kind != "f32":
        tensors["fc.weight"] = weights["fc.weight"].astype(np.float16)
        matrices = [key for key, value in weights.items() if value.ndim == 2 and key != "fc.weight"]
        wide = Q.F16 if kind == "f16" else Q.Q8_0
        for key in matrices:
            tensors[key] = (wide, gguf.quantize(tensors[key], wide))
    if kind == "q4_0":
        moments = input_moments(head, Corpus(data, 448), 6)
        layer = {key: weights[key] for key in eagle3.LAYER_MATRICES}
        named = {there: moments[here] for there, here in eagle3.LAYER_MATRICES.items()}
        tensors |= four_bits(layer, {k.removesuffix(".weight"): v for k, v in named.items()})
    tensors["d2t"] = head.d2t.numpy()
    more: dict[str, Any] = {
        "target_layers": list(head.shape.target_layers),
        "target_hidden_size": head.shape.width,
    }
    gguf_io.write_gguf(out, source, head.shape.as_dict(), tensors, name, "eagle3", more)


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
