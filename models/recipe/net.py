"""The student: a llama-architecture network in torch, laid out as llama.cpp computes it.

Q and K use the interleaved rotary layout (pairs 2i, 2i+1), which is what llama.cpp applies to the
`llama` architecture, so weights go from a GGUF into this network and back without a permutation.

A coupled student adds to the embedding of the token at position t either `from_target` times the
target's final state at t-1 (committed tokens) or `from_self` times its own (drafted tokens). A few
dimensions of a state are twenty times larger than the others, so states are divided by each
dimension's usual size first; `coupling` folds that division into the matrices.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn


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
    target_width: int = 0  # width of the target's states; 0 for an independent student

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

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]],
        mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """[batch, positions, width] to the same."""
        x = x + self.attn(self.attn_norm(x), turn, past, mask)
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
        if shape.target_width:
            self.from_target = nn.Linear(shape.target_width, shape.width, bias=False)
            self.from_self = nn.Linear(shape.width, shape.width, bias=False)
            self.register_buffer("target_size", torch.ones(shape.target_width))
            self.register_buffer("self_size", torch.ones(shape.width))

    def states(
        self, tokens: Tensor, extra: Tensor | None = None,
        past: list[list[tuple[Tensor, Tensor]]] | None = None, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Final normed states [batch, positions, width] of tokens [batch, positions].

        `extra` [batch, positions, width] is added to the embeddings; `past` (one list a layer)
        carries keys and values from one step of a roll-out to the next, with its `mask`.
        """
        x = self.embedding(tokens)
        x = x if extra is None else x + extra
        turn = rotary(tokens.shape[1], self.shape.head, self.shape.rope_base)
        turn = (turn[0].to(x.device), turn[1].to(x.device))
        past = [[] for _ in self.blocks] if past is None else past
        for block, kept in zip(self.blocks, past, strict=True):
            x = block(x, turn, kept, mask)
        return self.norm(x)

    def rollout(self, tokens: Tensor, target_states: Tensor, steps: int) -> list[Tensor]:
        """States of a coupled student at draft steps 1..`steps`, each [batch, positions, width].

        `target_states` [batch, positions, target width]: row t is the target's state at t. At
        step j, position t is the j-th token since the last true state: its input holds the
        student's own state at t-1 from step j-1, and it sees true-state keys up to t-j+1 and the
        keys of its own steps on the diagonals between (training-time test, EAGLE-3).
        """
        past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        shifted = f.pad(target_states, (0, 0, 1, 0))[:, :-1]
        found = [self.states(tokens, self.from_target(shifted / self.target_size), past)]
        for step in range(2, steps + 1):
            own = f.pad(found[-1], (0, 0, 1, 0))[:, :-1]
            mask = rollout_mask(tokens.shape[1], step).to(tokens.device)
            found.append(self.states(tokens, self.from_self(own / self.self_size), past, mask))
        return found


def coupling(student: Student) -> tuple[Tensor, Tensor]:
    """(w_h [width, target width], w_s [width, width]): what multiplies a state as it comes."""
    return (
        student.from_target.weight.detach() / student.target_size,
        student.from_self.weight.detach() / student.self_size,
    )


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
