"""An independent student: a llama-architecture network in torch, laid out as llama.cpp computes it, and what it is taught.

Q and K use the interleaved rotary layout (pairs 2i, 2i+1), which is what llama.cpp applies to the
`llama` architecture, so weights go from a GGUF into this network and back without a permutation.

A student starts from the target: its embedding in as many columns as the student has, and some of its layers. The
embedding is fixed before training and never changes: it is rounded to the 4 bits that ship and the layers learn to
serve that rounded head. It holds most of a tiny model's weights, so leaving it alone makes a step several times
cheaper and lets little text go far.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from models.recipe.gguf_io import LAYER, Head, Source, gguf_name
from models.recipe.rows import Batch, Corpus
from models.recipe.trainer import TrainingPlan, chosen_rows, state_distance, tensor_of
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

    def rollout(self, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
        """As `eagle3.Eagle3.rollout`; without features one step is all steps."""
        return [self.states(tokens)[:, 1:]]

    def logits(self, output: Tensor) -> Tensor:
        """[..., vocabulary] of an output of `rollout`."""
        return f.linear(output, self.embedding.weight)

    def ids(self, places: Tensor) -> Tensor:
        """The target's ids of places in `logits`."""
        return places


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


def read_student(source: Source) -> Student:
    """The student in a GGUF, with the weights as they stand there."""
    student = Student(Shape(**source.sizes(), vocab=len(source.tensor("token_embd.weight"))))
    weights = {key: source.tensor(gguf_name(key)) for key in student.state_dict()}
    student.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return student.eval()


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
                f"layer {layer} of the target does not fit a student of width {student.shape.width}",
                "leave out --from-layers, or take the target's width, heads and feed-forward size",
            )
        wanted.copy_(found)


@dataclass
class Support:
    """The ids that a softmax runs over instead of all.

    `kept` (sorted): the best ids of every row and the common ones. `others`: a random sample of
    the rest, which stands for all of them: `weight` is the logarithm of how many each stands for.
    Without the sample nothing would push the logits of rare ids down, and with a fixed head some
    of them end up on top.
    """

    kept: Tensor
    others: Tensor
    weight: float


def support(ids: Tensor, common: Tensor, near: int, others: Tensor, vocab: int) -> Support:
    """The `near` best of every row of `ids`, `common`, and what of `others` is neither."""
    kept = torch.unique(torch.cat([ids[:, :near].reshape(-1), common]))
    place = torch.searchsorted(kept, others).clamp(max=len(kept) - 1)
    others = others[kept[place] != others]
    return Support(kept, others, math.log(max(1, vocab - len(kept)) / max(1, len(others))))


def distances(
    states: Tensor, head: Tensor, among: Support, ids: Tensor, logp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(hard, soft, agreement), each [rows], of student states [rows, width].

    `head` [vocab, width] is the tied embedding; `ids` and `logp` [rows, top] the target's best.
    Target ids that are not among the kept ones are dropped and the rest renormalised.
    """
    logits = f.linear(states, head[among.kept].to(states.dtype)).float()
    total, best = logits.logsumexp(-1), logits.max(-1)
    first = among.kept[best.indices]
    if len(among.others):
        rest = f.linear(states, head[among.others].to(states.dtype)).float()
        total = torch.logaddexp(total, rest.logsumexp(-1) + among.weight)
        first = torch.where(best.values >= rest.amax(-1), first, -1)
    place = torch.searchsorted(among.kept, ids).clamp(max=len(among.kept) - 1)
    inside = among.kept[place] == ids
    wanted = torch.softmax(logp.masked_fill(~inside, -1e4), -1)
    at = logits.gather(1, place) - total[:, None]
    log_wanted = wanted.clamp(min=1e-9).log()
    soft = (wanted * (log_wanted - at)).sum(-1)
    return -at[:, 0], soft, first == ids[:, 0]


class StudentObjective:
    """The loss of a `Student` whose fixed head maps the target's states by `project`."""

    def __init__(
        self, student: Student, project: NDArray[np.float32], corpus: Corpus, plan: TrainingPlan
    ) -> None:
        self.student, self.plan = student, plan
        self.device = student.embedding.weight.device
        self.frozen = student.embedding.weight.detach().to(torch.bfloat16)
        self.project = torch.from_numpy(project).to(self.device)
        self.common = torch.from_numpy(common_ids(corpus, plan.softmax.common)).to(self.device)
        self.chance = torch.Generator()

    def loss(self, batch: Batch, step: int, rollout: int) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows, its parts as numbers); it has no steps to roll out."""
        names = ("token", "ids", "logp", "state")
        rows = {name: tensor_of(batch.rows[name], self.device) for name in names}
        with torch.autocast(self.device.type, torch.bfloat16):
            states = self.student.states(rows["token"])
        mask = torch.from_numpy(chosen_rows(batch, step, self.plan)).to(self.device)
        total, parts = self._row_loss(states[mask], rows, mask, step)
        parts = {f"{key}1": value for key, value in parts.items()}
        parts["loss"] = float(total.detach())
        return total, parts

    def _row_loss(
        self, states: Tensor, rows: dict[str, Tensor], mask: Tensor, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of the chosen rows, in pieces of 1024: each piece has its own small support."""
        w, softmax, vocab = self.plan.weights, self.plan.softmax, len(self.frozen)
        ids, logp, target = rows["ids"][mask], rows["logp"][mask], rows["state"][mask]
        total = torch.zeros((), device=self.device)
        sums = np.zeros(4)
        self.chance.manual_seed(self.plan.seed * 1_000_003 + step)
        for begin in range(0, len(states), 1024):
            part = slice(begin, begin + 1024)
            others = torch.randint(vocab, (softmax.others,), generator=self.chance)
            others = others.to(self.device)
            kept = support(ids[part], self.common, softmax.near, others, vocab)
            hard, soft, agree = distances(
                states[part].to(torch.bfloat16), self.frozen, kept, ids[part], logp[part]
            )
            far = state_distance(states[part], target[part] @ self.project.T)
            total = total + (w.hard * hard + w.soft * soft + w.state * far).sum()
            sums += [float(x.detach().float().sum()) for x in (hard, soft, far, agree)]
        names = ("hard", "soft", "state", "agree")
        return total / len(states), dict(zip(names, sums / len(states), strict=True))


def common_ids(corpus: Corpus, count: int) -> NDArray[np.int64]:
    """The `count` ids that are most often among the target's best, in a sample of rows."""
    rows = corpus.recordings[0].rows
    sample = np.asarray(rows["ids"][:: max(1, len(rows) // 20000)], np.int64)
    seen = np.bincount(sample.reshape(-1), minlength=corpus.meta.n_vocab)
    return np.sort(np.argsort(-seen, kind="stable")[:count])
