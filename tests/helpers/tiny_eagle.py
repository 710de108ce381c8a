"""Tiny random EAGLE-3 drafts for the targets of `tiny`, and what they must draft: a forward pass in numpy of target and draft.

The pass follows the paper's form (arXiv 2503.01840) and shares no line with the engine: all positions anew for every token.
"""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from helpers import tiny

LAYERS = (1, 2, 3)
N_LAYER = 4
"""Layers of a target that has these three."""

Matrix = np.ndarray


def write(
    path: Path, *, layers: Sequence[int] = LAYERS, seed: int = 5, embeddings: bool = True, head: bool = True,
    d2t: Sequence[int] | None = None, norm_before_residual: bool = False, norm_before_fc: bool = False,
    width: int = tiny.N_EMBD, hidden: int = tiny.N_EMBD, n_layer: int = 1, tokens: list[str] | None = None,
    output: Matrix | None = None,
) -> Path:  # fmt: skip
    """Write an EAGLE-3 file; without `embeddings` or `head` it uses the target's. output: a head in place of a random one."""
    tokens = tokens or tiny.TOKENS
    writer, weights = tiny.begun(path, "eagle3", n_layer, width), tiny.Weights(seed)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", hidden)
    if norm_before_residual:
        writer.add_bool("eagle3.norm_before_residual", True)
    if norm_before_fc:
        writer.add_bool("eagle3.norm_before_fc", True)
        writer.add_tensor("enc.output_norm.weight", 1 + 0.1 * weights.matrix(3 * hidden, 1)[:, 0])
    tiny._vocabulary(writer, tokens, tiny.EOS)
    n_draft = len(tokens) if d2t is None else len(d2t)
    writer.add_tensor("fc.weight", weights.matrix(width, 3 * hidden))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    if embeddings:
        scale = np.sqrt(width)
        writer.add_tensor("token_embd.weight", weights.matrix(len(tokens), width, scale=scale))
    if head:
        own = weights.matrix(n_draft, width, scale=tiny.LOGIT_SCALE)
        writer.add_tensor("output.weight", own if output is None else output)
    if d2t is not None:
        writer.add_tensor("d2t", np.asarray(d2t, np.int64))
    shapes = dict.fromkeys(["attn_q", "attn_k", "attn_v"], (width, 2 * width))
    shapes |= {"attn_output": (width, width), "ffn_gate": (tiny.N_FF, width)}
    shapes |= {"ffn_up": (tiny.N_FF, width), "ffn_down": (width, tiny.N_FF)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", weights.matrix(*shape))
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", 1 + 0.1 * weights.matrix(width, 1)[:, 0])
    return tiny.written(writer, path)


def _read(path: Path) -> tuple[dict[str, Matrix], dict[str, object]]:
    reader = gguf.GGUFReader(path)
    tensors = {t.name: np.array(t.data).reshape(tuple(t.shape)[::-1]) for t in reader.tensors}
    return tensors, {name: field.contents() for name, field in reader.fields.items()}


def _norm(x: Matrix, weight: Matrix) -> Matrix:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def _rotate(x: Matrix) -> Matrix:
    """Rotary embedding of [n, heads, size], neighbours in pairs."""
    n, _, size = x.shape
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def _attend(x: Matrix, t: dict[str, Matrix], layer: int) -> Matrix:
    n, heads = len(x), tiny.N_HEAD
    q, k, v = ((x @ t[f"blk.{layer}.attn_{name}.weight"].T).reshape(n, heads, -1) for name in "qkv")
    q, k = _rotate(q), _rotate(k)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(n, -1) @ t[f"blk.{layer}.attn_output.weight"].T


def _feed(x: Matrix, t: dict[str, Matrix], layer: int) -> Matrix:
    normed = _norm(x, t[f"blk.{layer}.ffn_norm.weight"])
    gate = normed @ t[f"blk.{layer}.ffn_gate.weight"].T
    up = normed @ t[f"blk.{layer}.ffn_up.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ t[f"blk.{layer}.ffn_down.weight"].T


def layer_inputs(target: Path, tokens: Sequence[int]) -> list[Matrix]:
    """What goes into each layer of a tiny llama, [n, n_embd] each."""
    t, _ = _read(target)
    x = t["token_embd.weight"][list(tokens)].astype(np.float64)
    inputs = []
    for layer in range(sum(name.endswith("attn_q.weight") for name in t)):
        inputs.append(x)
        x = x + _attend(_norm(x, t[f"blk.{layer}.attn_norm.weight"]), t, layer)
        x = x + _feed(x, t, layer)
    return inputs


class Draft:
    """An EAGLE-3 file beside its target."""

    def __init__(self, path: Path, target: Path) -> None:
        self.t, facts = _read(path)
        self.target = target
        self.layers = facts["eagle3.target_layers"]
        self.residual_normed = bool(facts.get("eagle3.norm_before_residual"))
        ends, _ = _read(target)
        self.embeddings = self.t.get("token_embd.weight", ends["token_embd.weight"])
        self.head = self.t.get("output.weight", ends["output.weight"])

    def encode(self, tokens: Sequence[int]) -> Matrix:
        inputs = layer_inputs(self.target, tokens)
        states = np.concatenate([inputs[layer] for layer in self.layers], axis=1)
        if (norm := self.t.get("enc.output_norm.weight")) is not None:
            states = _norm(states, norm)
        return states @ self.t["fc.weight"].T

    def states(self, tokens: Sequence[int], g: Matrix) -> Matrix:
        """The draft's own states before its last norm, where `tokens` follow the positions of `g`."""
        e = _norm(self.embeddings[list(tokens)], self.t["blk.0.attn_norm.weight"])
        normed = _norm(g, self.t["blk.0.attn_norm_2.weight"])
        x = normed if self.residual_normed else g
        x = x + _attend(np.concatenate([e, normed], axis=1), self.t, 0)
        return x + _feed(x, self.t, 0)

    def logits(self, states: Matrix) -> Matrix:
        own = _norm(states, self.t["output_norm.weight"]) @ self.head.T
        if "d2t" not in self.t:
            return own
        wide = np.full((len(own), len(tiny.TOKENS)), -np.inf)
        wide[:, self.t["d2t"]] = own
        return wide

    def draft(self, tokens: Sequence[int], n: int, since: int = 1) -> tuple[list[int], list[float]]:
        """The n tokens drafted after `tokens`, greedily, and their probabilities; read from position `since` on."""
        text, g = list(tokens[since - 1 :]), self.encode(tokens)[since - 1 : -1]
        drafted: list[int] = []
        chances: list[float] = []
        for _ in range(n):
            states = self.states(text[1:], g)
            row = self.logits(states[-1:])[0]
            drafted.append(int(row.argmax()))
            chances.append(float(1 / np.exp(row - row.max()).sum()))
            text.append(drafted[-1])
            g = np.concatenate([g, states[-1:]])
        return drafted, chances
