"""The target's logits for given tokens, by teacher forcing through its own engine; and what chooses from a row.

A row's two best tokens are by its logits or, where noise is coupled, by logits plus noise. For a chain that draws for itself,
the noise is unknown; the raw row's two best are returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec._lib import check, ffi, lib
from pyspec.engine.handle import PREFILL_CHUNK, Engine, Role
from pyspec.grammar.masks import CANDIDATES, read_candidates
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Coupling
from pyspec.text.parts import TokenLogprobs


def row_after(llm: SpeculativeLlama, text: Sequence[int]) -> npt.NDArray[np.float32]:
    """The target's logits [n_vocab] behind a text."""
    return next(replay(settled(llm), text, [0], [(1, 1)]))


def settled(llm: SpeculativeLlama) -> Engine:
    """The engine of a model whose KV will change."""
    engine = llm.session.engine
    engine.cancel(raised=False)
    llm.reset()
    return engine


def ready(engine: Engine, text: Sequence[int], depth: int, *also: Role, held: int = -1) -> None:
    """Set the first `depth` tokens, and have the target and the `also` roles read all but the last of them.

    held: how many of them a decode left in the target's KV, unaccepted drafts included; -1: what was accepted.
    """
    engine.set_tokens(0, text[:depth], held)
    for role in (Role.TARGET, *also):
        while engine.held(role, 0) < depth - 1:
            how = role, 0, depth - 1, PREFILL_CHUNK
            check(lib.ps_prefill(engine._engine, *how, ffi.new("int32_t *")), "reading the prompt")  # noqa: SLF001


def replay(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], rounds: Iterable[tuple[int, int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """The logits that each token of an answer was chosen from; its rounds are decoded again.

    rounds: rows of each decode, and tokens that it emitted. The rows beyond those held refused drafts; another token stands in
    for these.
    """
    text, done, held = list(prompt), 0, -1
    for rows, emitted in rounds:
        ready(engine, text, len(text), held=held)
        part = list(answer[done : done + emitted])
        # the last token's row is the one before it: nothing after it had to be decoded
        refused = [_other(engine, part[-1])] * (rows - emitted)
        engine.put_draft(0, [*part[:-1], *refused])
        engine.verify([(0, 0, rows - 1)])
        yield from (engine.row(0, i) for i in range(emitted))
        text += part
        done += emitted
        held = len(text) - 1  # keep the KV as that decode left it; do not read it again in another


def _other(engine: Engine, token: int) -> int:
    return token - 1 if token else engine.n_vocab - 1


def nats_of(row: npt.NDArray[np.float32], token: int) -> float:
    """-log of the target's probability of a token, by its logits."""
    return -TokenLogprobs.of(row, token).value


class TopTwo(NamedTuple):
    """Two best tokens with scores z1 >= z2: raw logits, or logits + T * G. second -1 and z2 -inf: truncation left only one."""

    first: int
    second: int
    z1: float
    z2: float

    def gap(self, temperature: float) -> float:
        """Nats between them in the distribution in force; temperature 0 stands for that of the raw row."""
        return (self.z1 - self.z2) / (temperature or 1.0)


def top_two(
    row: npt.NDArray[np.float32], chain: Any = None, coupling: Coupling | None = None, at: int = 0
) -> TopTwo:
    """The two best of raw logits [n_vocab]. chain: the `LlamaSampler` that truncates, None for the whole row.

    at: the position of the token in its sequence, prompt included.
    """
    if coupling is None:
        return _best(np.arange(len(row), dtype=np.int32), row.astype(np.float64))
    ids, scaled = left(row, chain, coupling.temperature)
    return _best(ids, coupling.temperature * (scaled + noise_of(coupling.seed, at, ids)))


def _best(ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> TopTwo:
    if len(ids) < 2:
        return TopTwo(int(ids[0]), -1, float(scores[0]), -np.inf)
    second, first = np.argpartition(scores, len(ids) - 2)[-2:]
    return TopTwo(int(ids[first]), int(ids[second]), float(scores[first]), float(scores[second]))


def left(
    row: npt.NDArray[np.float32], chain: Any, temperature: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Ids that a chain leaves of a row, and their logits divided by the temperature."""
    held = np.zeros(len(row), dtype=CANDIDATES)
    held["id"], held["logit"] = np.arange(len(row)), row
    if chain is None:
        return held["id"], row.astype(np.float64) / temperature
    array = llama_cpp.llama_token_data_array(
        ctypes.cast(held.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data)),
        len(row), -1, False,
    )  # fmt: skip
    llama_cpp.llama_sampler_apply(chain.sampler, ctypes.byref(array))
    found = read_candidates(ctypes.pointer(array))  # a sampler may have moved the start
    return found["id"].copy(), found["logit"].astype(np.float64)


def noise_of(seed: int, at: int, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The noise G of some ids at a position of a sequence."""
    own, out = np.ascontiguousarray(ids, dtype=np.int32), np.empty(len(ids))
    there, found = ffi.from_buffer("int32_t[]", own), ffi.from_buffer("double[]", out)
    lib.ps_noise(seed, at, there, len(own), found)
    return out
