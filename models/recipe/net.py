"""The student: a llama-architecture network in torch, laid out as llama.cpp computes it.

Q and K use the interleaved rotary layout (pairs 2i, 2i+1), which is what llama.cpp applies to the
`llama` architecture, so weights go from a GGUF into this network and back without a permutation.

A student starts from the target: its embedding in as many columns as the student has, and some of its layers. The
embedding is fixed before training and never changes: it is rounded to the 4 bits that ship and the layers learn to
serve that rounded head. It holds most of a tiny model's weights, so leaving it alone makes a step several times
cheaper and lets little text go far.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pyspec.models.recipe import gguf_io
from pyspec.models.recipe.gguf_io import LAYER, Source
from torch import Tensor, nn

from pyspec.errors import TrainingError


@dataclass(frozen=True)
class Shape:
    """Sizes of a student; widths are multiples of 32 so that every tensor can be quantised."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ff: int
    rope_base: float = 10000.0
    eps: float = 1e-5

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint or an error message."""
        return asdict(self)


class RMSNorm(nn.Module):  # type: ignore[misc]
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return f.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)


def rotary(positions: int, head: int, base: float) -> tuple[Tensor, Tensor]:
    """Cos and sin, each [positions, head / 2]."""
    inverse = base ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (2i, 2i+1) of x [batch, heads, positions, head]."""
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention; `past` lists the keys and values of the roll-out's earlier steps."""

    def __init__(self, s: Shape, into: int) -> None:
        super().__init__()
        self.s = s
        self.q = nn.Linear(into, s.heads * s.head, bias=False)
        self.k = nn.Linear(into, s.kv_heads * s.head, bias=False)
        self.v = nn.Linear(into, s.kv_heads * s.head, bias=False)
        self.o = nn.Linear(s.heads * s.head, s.width, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]],
        mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """X [batch, positions, width]; appends this step's keys and values to `past`."""
        batch, count, _ = x.shape
        q, k, v = (
            part(x).view(batch, count, -1, self.s.head).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = rotate(q, *turn), rotate(k, *turn)
        past.append((k, v))
        keys = torch.cat([key for key, _ in past], 2)
        values = torch.cat([value for _, value in past], 2)
        repeat = self.s.heads // self.s.kv_heads
        out = f.scaled_dot_product_attention(
            q,
            keys.repeat_interleave(repeat, 1),
            values.repeat_interleave(repeat, 1),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return self.o(out.transpose(1, 2).reshape(batch, count, -1))


class Block(nn.Module):  # type: ignore[misc]
    """One transformer layer: attention and a gated feed-forward, each behind a norm."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = RMSNorm(s.width, s.eps), RMSNorm(s.width, s.eps)
        self.attn = Attention(s, s.width)
        self.gate = nn.Linear(s.width, s.ff, bias=False)
        self.up = nn.Linear(s.width, s.ff, bias=False)
        self.down = nn.Linear(s.ff, s.width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """[batch, positions, width] to the same."""
        x = x + self.attn(self.attn_norm(x), turn, [], None)
        inner = self.ffn_norm(x)
        return x + self.down(f.silu(self.gate(inner)) * self.up(inner))


class Student(nn.Module):  # type: ignore[misc]
    """The network; the embedding is tied to the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.eps)

    def states(self, tokens: Tensor) -> Tensor:
        """Final normed states [batch, positions, width] of tokens [batch, positions]."""
        x = self.embedding(tokens)
        turn = rotary(tokens.shape[1], self.shape.head, self.shape.rope_base)
        turn = (turn[0].to(x.device), turn[1].to(x.device))
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)


def rollout_mask(count: int, step: int) -> Tensor:
    """Who may look at whom at draft step `step`: bool [count, step * count].

    Column block i (from 0) holds the keys of step i+1. Positions before `step` have no complete
    history of drafted tokens; they see themselves only and their loss is left out.
    """
    row = torch.arange(count)[:, None]
    column = torch.arange(count)[None, :]
    blocks = [column <= row - (step - 1)]
    blocks += [column == row - (step - i) for i in range(2, step + 1)]
    return torch.cat(blocks, 1)


@dataclass
class Head:
    """A tied embedding: float32 `values` [vocab, width], Q4_0 `scales` [vocab, width / 32].

    `project` [width, target width] maps a target's state to the state that this head expects.
    """

    values: NDArray[np.float32]
    scales: NDArray[np.float32]
    project: NDArray[np.float32]


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
    values, scales = gguf_io.compensated(matrix, moment)
    return Head(values, scales, project)


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
    load_head(student, head)
    return student


def load_head(student: Student, head: Head) -> None:
    """Put the fixed embedding in place."""
    with torch.no_grad():
        student.embedding.weight.copy_(torch.from_numpy(head.values))
    student.embedding.weight.requires_grad_(False)


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
