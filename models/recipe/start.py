"""Where a student starts: the target's embedding in a narrower basis, layers of the target.

The embedding is fixed before training and never changes: it is rounded to the 4 bits that ship
and the layers learn to serve that rounded head. It holds most of a tiny model's weights, so
leaving it alone makes a step several times cheaper and lets little text go far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pyspec.models.recipe import headquant
from pyspec.models.recipe.gguf_io import LAYER, Source
from pyspec.models.recipe.net import Shape, Student

from pyspec.errors import TrainingError


@dataclass
class Head:
    """A tied embedding: float32 `values` [vocab, width], Q4_0 `scales` [vocab, width / 32].

    `project` [width, target width] maps a target's state to the state that this head expects. `sizes` [target width]: root mean
    square of each dimension of the target's states.
    """

    values: NDArray[np.float32]
    scales: NDArray[np.float32]
    project: NDArray[np.float32]
    sizes: NDArray[np.float32]


def make_head(source: Source, states: NDArray[np.float32], width: int) -> Head:
    """The target's output matrix in `width` columns, rounded to Q4_0 with compensation.

    Narrower than the target: the best rank-`width` factors A B of the output matrix W for the
    states h that really occur, least E|W h - A B h|^2: with C = E[h h^T], the leading left
    singular vectors of W C^(1/2). A's columns are made orthogonal and of equal size, because
    Q4_0 shares one scale between 32 of them.
    """
    matrix = source.tensor(source.output_name)
    moment = (states.T @ states / len(states)).astype(np.float64)
    if width == matrix.shape[1]:
        project = np.eye(width, dtype=np.float32)
    else:
        matrix, project = _factors(matrix, moment, width)
    moment = project.astype(np.float64) @ moment @ project.T.astype(np.float64)
    values, scales = headquant.compensated(matrix, moment)
    return Head(values, scales, project, np.sqrt(np.mean(states**2, axis=0)) + 1e-6)


def _factors(
    matrix: NDArray[np.float32], moment: NDArray[np.float64], width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(A [vocab, width], B [width, target width]); the sign and order of columns are fixed."""
    power, vectors = np.linalg.eigh(moment)
    root = (vectors * np.sqrt(power.clip(0))) @ vectors.T
    gram = root @ (matrix.T.astype(np.float64) @ matrix) @ root
    strength, basis = np.linalg.eigh(gram)
    basis, strength = basis[:, -width:], strength[-width:]
    # a rotation spreads the strong directions over all columns, for Q4_0's shared scales
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    size = np.sqrt(np.mean(matrix.astype(np.float64) ** 2) * len(matrix))
    left = basis / np.sqrt(strength) @ turn * size
    inverse = (vectors / np.sqrt(power.clip(1e-6))) @ vectors.T
    back = turn.T @ (basis * np.sqrt(strength)).T / size
    return (matrix @ (root @ left)).astype(np.float32), (back @ inverse).astype(np.float32)


def make_student(source: Source, head: Head, shape: Shape, layers: list[int], seed: int) -> Student:
    """A student with `head` and, where widths agree, the target's `layers` as its own."""
    torch.manual_seed(seed)
    student = Student(shape)
    with torch.no_grad():
        for block in student.blocks:
            for part in (block.attn.o, block.down):
                part.weight.mul_(0.3)
        if shape.width == len(head.project[0]):
            student.norm.weight.copy_(torch.from_numpy(source.tensor("output_norm.weight")))
        else:
            student.norm.weight.mul_(0.5)
        for number, layer in enumerate(layers):
            _copy_layer(source, student, number, layer)
        if shape.target_width:
            _start_coupling(student, head)
    load_head(student, head)
    return student


def load_head(student: Student, head: Head) -> None:
    """Put the fixed embedding in place."""
    with torch.no_grad():
        student.embedding.weight.copy_(torch.from_numpy(head.values))
    student.embedding.weight.requires_grad_(False)


def _start_coupling(student: Student, head: Head) -> None:
    """States enter as the head's projection of them, a third as large as an embedding.

    The student's own state is already in the head's basis, so it enters through the same map
    without the projection.
    """
    own = np.sqrt(np.sum((head.project * head.sizes) ** 2, axis=1))
    size = float(np.sqrt(np.mean(head.values**2)) / np.sqrt(np.mean(own**2))) / 3
    student.target_size.copy_(torch.from_numpy(head.sizes))
    student.self_size.copy_(torch.from_numpy(own))
    student.from_target.weight.copy_(torch.from_numpy(head.project * head.sizes * size))
    student.from_self.weight.copy_(torch.diag(torch.from_numpy(own) * size))


def _copy_layer(source: Source, student: Student, number: int, layer: int) -> None:
    weights = student.state_dict()
    for there, here in LAYER.items():
        wanted = weights[f"blocks.{number}.{here}.weight"]
        found = torch.from_numpy(source.tensor(f"blk.{layer}.{there}.weight"))
        if found.shape != wanted.shape:
            raise TrainingError(
                f"layer {layer} of the target does not fit a student of width "
                f"{student.shape.width}",
                "leave out --layers, or take the target's width, heads and feed-forward size",
            )
        wanted.copy_(found)
