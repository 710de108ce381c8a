"""The target's logits for given tokens, by teacher forcing through its own engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyspec.engine.handle import PREFILL_CHUNK, Engine, Role
from pyspec.llama.speculative import SpeculativeLlama
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
            engine.prefill(role, 0, depth - 1, PREFILL_CHUNK)


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
