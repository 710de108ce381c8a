"""Tiny random DFlash and DSpark drafts for the targets of `tiny`, and what they must draft: a forward pass in numpy.

The pass follows the paper (arXiv 2602.06036): the target's states become keys and values, and a block of the last token and masks
sees them and itself. It shares no line with the engine: all positions anew for every block.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from helpers import tiny
from helpers.tiny_eagle import LAYERS, Matrix, _feed, _norm, _read, layer_inputs

BLOCK, MASK, RANK = 6, 1, 8
N_LAYER = 2


def write(
    path: Path, *, layers: Sequence[int] = LAYERS, seed: int = 5, embeddings: bool = True, head: bool = True,
    d2t: Sequence[int] | None = None, markov: bool = False, confidence: bool = False, selector: bool = False,
    width: int = tiny.N_EMBD, **facts: Any,
) -> Path:  # fmt: skip
    """Write a DFlash file, or with `markov` a DSpark one; without `embeddings` or `head` it uses the target's.

    facts: causal, anchored, block and mask, None for what the file does not say.
    """
    said = {"causal": False, "anchored": None, "block": BLOCK, "mask": MASK} | facts
    writer, weights = tiny.begun(path, "dflash", N_LAYER, width), tiny.Weights(seed)
    _add_facts(writer, layers, said)
    n_draft = tiny.N_VOCAB if d2t is None else len(d2t)
    ends = {
        "token_embd.weight": (embeddings, (tiny.N_VOCAB, width), np.sqrt(width)),
        "output.weight": (head, (n_draft, width), tiny.LOGIT_SCALE),
        "markov_w1.weight": (markov, (tiny.N_VOCAB, RANK), 3), "markov_w2.weight": (markov, (n_draft, RANK), 3),
        "conf_proj.weight": (confidence, (1, width + RANK), 2), "conf_proj.bias": (confidence, (1,), 0.3),
        "selector_hidden.weight": (selector, (4, width), 1), "fc.weight": (True, (width, len(layers) * width), 1),
    }  # fmt: skip
    for name, (wanted, shape, scale) in ends.items():
        tensor = weights.matrix(*shape, scale=scale)
        if name == "output.weight" and d2t is None:
            tensor[: tiny.EOS + 1] = 0.0  # what ends a text ends a draft
        if wanted:
            writer.add_tensor(name, tensor)
    if d2t is not None:
        writer.add_tensor("d2t", np.asarray(d2t, np.int64))
    norms = {"enc.output_norm.weight": width, "output_norm.weight": width}
    for layer in range(N_LAYER):
        for name, tensor in tiny._attention(weights, f"blk.{layer}"):
            if "norm" not in name:
                writer.add_tensor(name, tensor)
        sizes = {"attn_norm": 1, "ffn_norm": 1}
        sizes |= {"attn_q_norm": tiny.N_HEAD, "attn_k_norm": tiny.N_HEAD}
        norms |= {f"blk.{layer}.{name}.weight": width // of for name, of in sizes.items()}
    for name, size in norms.items():
        writer.add_tensor(name, 1 + 0.1 * weights.matrix(size, 1)[:, 0])
    return tiny.written(writer, path)


def _add_facts(writer: gguf.GGUFWriter, layers: Sequence[int], said: dict[str, Any]) -> None:
    writer.add_array("dflash.target_layers", list(layers))
    writer.add_causal_attention(said["causal"])
    if said["block"] is not None:
        writer.add_uint32("dflash.block_size", said["block"])
    if said["anchored"] is not None:
        writer.add_bool("dflash.sample_from_anchor", said["anchored"])
    tiny._vocabulary(writer, tiny.TOKENS, tiny.EOS)
    if said["mask"] is not None:
        writer.add_mask_token_id(said["mask"])


def _rotate(x: Matrix, first: int) -> Matrix:
    """Rotary embedding of [n, heads, size], halves against each other, from a position on."""
    n, _, size = x.shape
    angle = (first + np.arange(n))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


class Draft:
    """A DFlash or DSpark file beside its target."""

    def __init__(self, path: Path, target: Path) -> None:
        self.t, facts = _read(path)
        self.target = target
        self.layers = facts["dflash.target_layers"]
        self.causal = bool(facts["dflash.attention.causal"])
        anchored = bool(facts.get("dflash.sample_from_anchor", True))
        self.anchored = anchored and "markov_w1.weight" in self.t
        ends, _ = _read(target)
        self.embeddings = self.t.get("token_embd.weight", ends["token_embd.weight"])
        own = self.t.get("output.weight", self.t.get("token_embd.weight"))
        self.head = ends["output.weight"] if own is None else own

    def _heads(self, x: Matrix, layer: int, name: str, first: int) -> Matrix:
        rows = (x @ self.t[f"blk.{layer}.attn_{name}.weight"].T).reshape(len(x), tiny.N_HEAD, -1)
        if name == "v":
            return rows
        return _rotate(_norm(rows, self.t[f"blk.{layer}.attn_{name}_norm.weight"]), first)

    def _attend(self, x: Matrix, g: Matrix, since: int, layer: int) -> Matrix:
        first = since + len(g)
        q = self._heads(x, layer, "q", first)
        k, v = (
            np.concatenate([self._heads(g, layer, n, since), self._heads(x, layer, n, first)])
            for n in "kv"
        )
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        if self.causal:
            seen = np.tril(np.ones((len(x), len(k)), bool), len(g))
            scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)
        return mixed.reshape(len(x), -1) @ self.t[f"blk.{layer}.attn_output.weight"].T

    def rows(self, tokens: Sequence[int], n: int, since: int) -> Matrix:
        """What comes out of a block of n rows behind a text, its last token in front: normed states."""
        inputs = layer_inputs(self.target, tokens)
        states = np.concatenate([inputs[layer] for layer in self.layers], axis=1)[since:-1]
        g = _norm(states @ self.t["fc.weight"].T, self.t["enc.output_norm.weight"])
        x = self.embeddings[[tokens[-1], *[MASK] * (n - 1)]].astype(np.float64)
        for layer in range(N_LAYER):
            normed = _norm(x, self.t[f"blk.{layer}.attn_norm.weight"])
            x = x + self._attend(normed, g, since, layer)
            x = x + _feed(x, self.t, layer)
        return _norm(x, self.t["output_norm.weight"])

    def _wide(self, own: Matrix, fill: float) -> Matrix:
        if "d2t" not in self.t:
            return own
        wide = np.full(tiny.N_VOCAB, fill)
        wide[self.t["d2t"]] = own
        return wide

    def draft(self, tokens: Sequence[int], n: int, since: int = 0) -> tuple[list[int], list[float]]:
        """The n tokens of a block after `tokens`, and how sure it is of each; states are read from position `since` on."""
        first = 0 if self.anchored else 1
        rows = self.rows(tokens, n + first, since)[first:]
        drafted: list[int] = []
        chances: list[float] = []
        before = int(tokens[-1])
        for row in rows:
            logits = self._wide(row @ self.head.T, -np.inf)
            if "markov_w1.weight" in self.t:
                w1 = self.t["markov_w1.weight"][before]
                logits = logits + self._wide(w1 @ self.t["markov_w2.weight"].T, 0.0)
            before = int(logits.argmax())
            drafted.append(before)
            chances.append(float(1 / np.exp(logits - logits.max()).sum()))
            if "conf_proj.weight" in self.t:
                z = np.concatenate([row, w1]) @ self.t["conf_proj.weight"].ravel()
                chances[-1] = float(1 / (1 + np.exp(-z - self.t["conf_proj.bias"][0])))
        return drafted, chances
