"""A draft's GGUF, read back into torch and run along recorded answers.

The weights are those of the file, rounded as they ship, so what is measured here is what llama.cpp
computes up to its own rounding of activations (tests/models compares the two).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyspec.models.recipe import sidecar
from pyspec.models.recipe.eagle3 import Eagle3, read_head
from pyspec.models.recipe.gguf_io import Source, architecture, gguf_name
from pyspec.models.recipe.net import Shape, Student
from pyspec.models.recipe.scores import Guess

from pyspec.errors import TrainingError


def read_student(path: Path) -> Student:
    """The student in a GGUF, coupled when a sidecar lies beside it."""
    source = Source(path)
    beside = path.with_suffix(".npz")
    coupling = sidecar.load(beside) if beside.exists() else None
    embedding = source.tensor("token_embd.weight")
    get = source.field
    heads = int(get("llama.attention.head_count"))
    shape = Shape(
        vocab=len(embedding), width=embedding.shape[1], layers=int(get("llama.block_count")),
        heads=heads, kv_heads=int(get("llama.attention.head_count_kv", heads)),
        head=int(get("llama.attention.key_length", embedding.shape[1] // heads)),
        ff=int(get("llama.feed_forward_length")),
        rope_base=float(get("llama.rope.freq_base", 10000.0)),
        eps=float(get("llama.attention.layer_norm_rms_epsilon")),
        target_width=0 if coupling is None else coupling.w_h.shape[1],
    )  # fmt: skip
    student = Student(shape)
    weights = {key: source.tensor(name) for key in student.state_dict() if (name := gguf_name(key))}
    if coupling is not None:
        weights["from_target.weight"] = coupling.w_h.astype(np.float32)
        weights["from_self.weight"] = coupling.w_s.astype(np.float32)
        weights["target_size"] = np.ones(coupling.w_h.shape[1], np.float32)
        weights["self_size"] = np.ones(coupling.w_s.shape[1], np.float32)
    student.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    student.eval()
    return student


class Replay:
    """Guesses of one draft; raises `TrainingError` when it speaks another vocabulary."""

    def __init__(self, path: Path, target: Path, steps: int) -> None:
        kind, own = architecture(path), Source(target)
        self.student = read_head(path, own) if kind == "eagle3" else read_student(path)
        self.steps = steps
        tokens = "tokenizer.ggml.tokens"
        if Source(path, kind).field(tokens) != own.field(tokens):
            raise TrainingError(f"{path} has another vocabulary than {target}", "export it again")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def guess(self, rows: NDArray[Any], prompt: int) -> Guess:
        """Guesses at the rows that predict the answer, at every draft step."""
        tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
        if isinstance(self.student, Eagle3):
            return self._eagle3(self.student, tokens, rows, prompt)
        if self.student.shape.target_width:
            states = torch.from_numpy(rows["state"].astype(np.float32))[None]
            found = self.student.rollout(tokens, states, self.steps)
        else:
            found = [self.student.states(tokens)]
        ids, sure = [], None
        for states in found:
            logits = states[0, prompt - 1 :] @ self.student.embedding.weight.T
            top = torch.softmax(logits, -1).max(-1)
            sure = top.values.numpy() if sure is None else sure
            ids.append(top.indices.numpy())
        return Guess(np.stack(ids), sure)

    def _eagle3(self, head: Eagle3, tokens: torch.Tensor, rows: NDArray[Any], prompt: int) -> Guess:
        """Output t of a head says what follows token t+1."""
        features = torch.from_numpy(rows["features"].astype(np.float32))[None]
        ids, sure = [], None
        for output in head.rollout(tokens, features, self.steps):
            top = torch.softmax(head.head(head.norm(output[0, prompt - 2 :])), -1).max(-1)
            sure = top.values.numpy() if sure is None else sure
            ids.append(head.d2t[top.indices].numpy())
        return Guess(np.stack(ids), sure)
