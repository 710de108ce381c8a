"""An EAGLE-3 head in torch, computed as llama.cpp computes architecture `eagle3` (arXiv:2503.01840).

The inputs of three layers of the target are fused into one state g by `fc`. At position t one layer reads
the pair of token t+1 and g of position t, both behind norms of their own, and says token t+2, out of a
draft vocabulary. While drafting, the layer's own output takes the place of g. Embeddings are the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from models.recipe.gguf_io import Source
from models.recipe.rows import Batch, Corpus
from models.recipe.student import Attention, RMSNorm, Shape, rollout_mask, rotary
from models.recipe.trainer import TrainingPlan, chosen_rows, state_distance, tensor_of
from pyspec.errors import TrainingError


@dataclass(frozen=True)
class Eagle3Shape(Shape):  # type: ignore[misc]
    """`layers` is 1, `width` the target's; `target_layers` are those whose inputs are read."""

    draft_vocab: int = 8192
    target_layers: tuple[int, ...] = ()


class Eagle3(nn.Module):  # type: ignore[misc]
    """The head; `d2t` [draft vocabulary] are the target's ids of the draft's, ascending.

    `sizes` [layers, width] is the usual size of each dimension of the features; `fused` folds the division by it into `fc`.
    """

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.embedding = nn.Embedding(shape.vocab, width)
        self.fc = nn.Linear(len(shape.target_layers) * width, width, bias=False)
        self.attn_norm, self.attn_norm_2 = RMSNorm(width, shape.eps), RMSNorm(width, shape.eps)
        self.attn = Attention(shape, 2 * width)
        self.ffn_norm, self.norm = RMSNorm(width, shape.eps), RMSNorm(width, shape.eps)
        self.gate = nn.Linear(width, shape.ff, bias=False)
        self.up = nn.Linear(width, shape.ff, bias=False)
        self.down = nn.Linear(shape.ff, width, bias=False)
        self.head = nn.Linear(width, shape.draft_vocab, bias=False)
        self.register_buffer("d2t", torch.zeros(shape.draft_vocab, dtype=torch.int64))
        self.register_buffer("sizes", torch.ones(len(shape.target_layers), width))

    def fuse(self, features: Tensor) -> Tensor:
        """G [batch, positions, width] of features [batch, positions, layers, width]."""
        return self.fc((features / self.sizes).flatten(-2))

    def fused(self) -> Tensor:
        """What multiplies features as they come: [width, layers * width]."""
        return self.fc.weight.detach() / self.sizes.flatten()

    def layer(
        self, tokens: Tensor, g: Tensor, past: list[tuple[Tensor, Tensor]], mask: Tensor | None
    ) -> Tensor:
        """The layer's output before the last norm, [batch, positions, width]."""
        turn = rotary(tokens.shape[1], self.shape.head, self.shape.rope_base)
        turn = (turn[0].to(g.device), turn[1].to(g.device))
        both = torch.cat(
            [self.attn_norm(self.embedding(tokens)).to(g.dtype), self.attn_norm_2(g)], -1
        )
        x = g + self.attn(both, turn, past, mask)
        inner = self.ffn_norm(x)
        return x + self.down(f.silu(self.gate(inner)) * self.up(inner))

    def rollout(self, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
        """Outputs at draft steps 1..`steps`, each [batch, positions - 1, width].

        `tokens` [batch, positions] and `features` [batch, positions, layers, width] are those of the same positions; output t
        predicts what follows token t+1. At step j, position t is the j-th
        token since the last true feature: its g is the output of step j-1 at t-1, and it sees the keys of step 1 up to t-j+1
        and those of its own steps on the diagonals between (training-time test).
        """
        past: list[tuple[Tensor, Tensor]] = []
        following = tokens[:, 1:]
        found = [self.layer(following, self.fuse(features[:, :-1]), past, None)]
        for step in range(2, steps + 1):
            own = f.pad(found[-1], (0, 0, 1, 0))[:, :-1]
            mask = rollout_mask(following.shape[1], step).to(tokens.device)
            found.append(self.layer(following, own, past, mask))
        return found

    def logits(self, output: Tensor) -> Tensor:
        """[..., draft vocabulary] of an output of `rollout`."""
        return self.head(self.norm(output))

    def ids(self, places: Tensor) -> Tensor:
        """The target's ids of places in `logits`."""
        return self.d2t[places]


def draft_vocabulary(corpus: Corpus, size: int) -> NDArray[np.int64]:
    """The `size` ids that the target says most often, ascending.

    Of the rest the lowest ids come first: a byte-pair vocabulary is sorted by how common its merges are.
    """
    vocab = corpus.meta.n_vocab
    seen = np.zeros(vocab)
    for recording in corpus.recordings:
        rows = recording.rows
        seen += np.bincount(np.asarray(rows["ids"][:, 0], np.int64), minlength=vocab)
        seen += np.bincount(np.asarray(rows["next"], np.int64), minlength=vocab)
    order = np.lexsort((np.arange(vocab), -seen))
    return np.sort(order[:size]).astype(np.int64)


def feature_sizes(corpus: Corpus, count: int = 20_000) -> NDArray[np.float32]:
    """Root mean square of each feature's dimensions, [layers, width], over about `count` rows."""
    rows = corpus.recordings[0].rows
    sample = rows["features"][:: max(1, len(rows) // count)].astype(np.float32)
    return np.asarray(np.sqrt(np.mean(sample**2, axis=0)) + 1e-6, np.float32)


def make_head(
    source: Source, corpus: Corpus, shape: Eagle3Shape, d2t: NDArray[np.int64], seed: int
) -> Eagle3:
    """A head that begins near the target's own last layer.

    g begins as the deepest feature. Every attention head begins by looking for its own token (queries and
    keys are the same random projection of the embedding) and carries a slice of the token's embedding into
    the state. Where sizes agree, the feed-forward parts are those of the target's last layers, side by side.
    """
    if not corpus.meta.layers:
        raise TrainingError("the recordings hold no layers' inputs", "write them with --layers")
    torch.manual_seed(seed)
    head = Eagle3(shape)
    width = shape.width
    sizes = feature_sizes(corpus)
    embedding = source.tensor("token_embd.weight")
    with torch.no_grad():
        head.d2t.copy_(torch.from_numpy(d2t))
        head.sizes.copy_(torch.from_numpy(sizes))
        head.norm.weight.copy_(torch.from_numpy(source.tensor("output_norm.weight")))
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, -width:] += torch.diag(head.sizes[-1])
        _look_at_itself(head, embedding, float(np.median(sizes[-1])))
        _copy_feed_forward(source, head, int(source.field("llama.block_count")))
    borrow(head, source)
    return head


def borrow(head: Eagle3, source: Source) -> None:
    """Put the target's embeddings and output rows in place; they are not learned."""
    with torch.no_grad():
        head.embedding.weight.copy_(torch.from_numpy(source.tensor("token_embd.weight")))
        rows = source.tensor(source.output_name)[head.d2t.numpy()]
        head.head.weight.copy_(torch.from_numpy(rows))
    for frozen in (head.embedding, head.head):
        frozen.weight.requires_grad_(False)


def _look_at_itself(head: Eagle3, embedding: NDArray[np.float32], size: float) -> None:
    """Start of the attention; `size` is what a carried embedding should have in the state."""
    shape = head.shape
    width, kv = shape.width, shape.kv_heads * shape.head
    mean = embedding[head.d2t.numpy()].mean(0)
    mean /= np.linalg.norm(mean)
    for part in (head.attn.q, head.attn.k, head.attn.v, head.attn.o):
        part.weight.mul_(0.3)
    for number in range(shape.kv_heads):
        rows = slice(number * shape.head, (number + 1) * shape.head)
        basis = torch.linalg.qr(torch.randn(width, shape.head))[0].T
        basis -= torch.from_numpy(np.outer(basis.numpy() @ mean, mean)).float()
        head.attn.k.weight[rows, :width] = basis
        group = shape.heads // shape.kv_heads
        for q in range(number * group, (number + 1) * group):
            head.attn.q.weight[q * shape.head : (q + 1) * shape.head, :width] = basis
    if kv == width == shape.heads * shape.head:
        head.attn.v.weight[:, :width] += torch.eye(width)
        head.attn.o.weight += size * torch.eye(width)


def _copy_feed_forward(source: Source, head: Eagle3, layers: int) -> None:
    """As many of the target's last layers' feed-forward parts as fit, with their norms folded in."""
    one = int(source.field("llama.feed_forward_length"))
    for number in range(head.shape.ff // one):
        layer, part = f"blk.{layers - 1 - number}.", slice(number * one, (number + 1) * one)
        norm = source.tensor(layer + "ffn_norm.weight")
        head.gate.weight[part] = torch.from_numpy(source.tensor(layer + "ffn_gate.weight") * norm)
        head.up.weight[part] = torch.from_numpy(source.tensor(layer + "ffn_up.weight") * norm)
        head.down.weight[:, part] = torch.from_numpy(source.tensor(layer + "ffn_down.weight"))


LAYER_MATRICES = {
    "blk.0.attn_q.weight": "attn.q",
    "blk.0.attn_k.weight": "attn.k",
    "blk.0.attn_v.weight": "attn.v",
    "blk.0.attn_output.weight": "attn.o",
    "blk.0.ffn_gate.weight": "gate",
    "blk.0.ffn_up.weight": "up",
    "blk.0.ffn_down.weight": "down",
}
"""Name in the file -> name in `Eagle3` of the layer's matrices."""
NAMES = LAYER_MATRICES | {
    "blk.0.attn_norm.weight": "attn_norm",
    "blk.0.attn_norm_2.weight": "attn_norm_2",
    "blk.0.ffn_norm.weight": "ffn_norm",
    "output_norm.weight": "norm",
    "output.weight": "head",
}


def file_weights(head: Eagle3) -> dict[str, NDArray[np.float32]]:
    """The weights as llama.cpp's file names them, the features' sizes folded into `fc`."""
    own = head.state_dict()
    found = {there: own[f"{here}.weight"].float().numpy() for there, here in NAMES.items()}
    return {"fc.weight": head.fused().float().numpy(), **found}


def read_head(source: Source, target: Source) -> Eagle3:
    """The head in a GGUF, with the weights as they stand there and the target's embeddings."""
    d2t = np.array(source.tensors["d2t"].data, np.int64)
    embedding = target.tensor("token_embd.weight")
    layers = tuple(int(layer) for layer in source.field("eagle3.target_layers"))
    shape = Eagle3Shape(
        **source.sizes(), vocab=len(embedding), draft_vocab=len(d2t), target_layers=layers
    )
    head = Eagle3(shape)
    weights: dict[str, Any] = {
        f"{here}.weight": source.tensor(there) for there, here in NAMES.items()
    }
    weights |= {"fc.weight": source.tensor("fc.weight"), "embedding.weight": embedding, "d2t": d2t}
    weights["sizes"] = np.ones((len(shape.target_layers), shape.width), np.float32)
    head.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return head.eval()


class Eagle3Objective:
    """The loss on the target's whole distribution.

    The target's probabilities come from its recorded final state and log-sum-exp, so they are exact over the
    draft vocabulary; what they leave to one lies outside it, and a row counts as much as it has inside.
    """

    def __init__(self, head: Eagle3, plan: TrainingPlan) -> None:
        self.head, self.plan = head, plan
        self.small = torch.full((head.shape.vocab,), -1, dtype=torch.int64, device=head.d2t.device)
        self.small[head.d2t] = torch.arange(len(head.d2t), device=head.d2t.device)

    def loss(self, batch: Batch, step: int, rollout: int) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows and the roll-out's steps, its parts as numbers)."""
        device = self.head.d2t.device
        chosen = chosen_rows(batch, step, self.plan)
        tokens = tensor_of(batch.rows["token"], device)
        features = tensor_of(batch.rows["features"], device)
        where = torch.from_numpy(chosen[:, 1:]).to(device)
        rows = batch.rows[:, 1:][chosen[:, 1:]]
        with torch.autocast(device.type, torch.bfloat16):
            found = self.head.rollout(tokens, features, rollout)
            wanted, states = self._wanted(rows, device)
            true = self.head.fuse(features[:, 1:]).detach()[where]
        first = self.small[tensor_of(rows["ids"][:, 0], device)]
        total, parts, share = torch.zeros((), device=device), {}, 0.0
        for number, output in enumerate(found, 1):
            late = torch.arange(where.shape[1], device=device)[None, :] >= number - 1
            use = (where & late)[where]
            loss, values = self._rows(
                output[where][use], wanted[use], first[use], states[use], true[use]
            )
            total, share = total + 0.8 ** (number - 1) * loss, share + 0.8 ** (number - 1)
            parts.update({f"{name}{number}": value for name, value in values.items()})
        parts["loss"] = float(total.detach()) / share
        return total / share, parts

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _wanted(self, rows: NDArray[Any], device: torch.device) -> tuple[Tensor, Tensor]:
        """(probabilities [rows, draft vocabulary], final states [rows, width]) of the target."""
        states, lse = tensor_of(rows["state"], device), tensor_of(rows["lse"], device)
        return (self.head.head(states).float() - lse[:, None]).exp_(), states

    def _rows(
        self, output: Tensor, wanted: Tensor, first: Tensor, states: Tensor, true: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of chosen rows; `true` is the g that `output` stands for at the next draft step."""
        normed = self.head.norm(output)
        with torch.autocast(output.device.type, torch.bfloat16):
            logits = self.head.head(normed).float()
        logq = logits.log_softmax(-1)
        soft = -(wanted * logq).sum(-1)
        inside = first >= 0
        hard = -logq.gather(1, first.clamp(min=0)[:, None])[:, 0] * inside
        far = state_distance(normed, states)
        drift = ((output.float() - true.float()) / self.head.sizes[-1]).pow(2).mean(-1)
        agree = (logits.argmax(-1) == first) & inside
        w, count = self.plan.weights, max(1, len(output))
        total = (w.hard * hard + w.soft * soft + w.state * far + w.drift * drift).sum() / count
        named = {"hard": hard, "soft": soft, "state": far, "drift": drift, "agree": agree}
        return total, {k: float(v.detach().float().sum()) / count for k, v in named.items()}
