"""The target's logits for given tokens, by teacher forcing through its own engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyspec.engine.handle import Engine
from pyspec.engine.timing import ready
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.limits import MAX_DRAFT
from pyspec.text.parts import TokenLogprobs


def rows_after(
    llm: SpeculativeLlama, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[npt.NDArray[np.float32]]:
    """The target's logits [n_vocab] for each token of `answer`, given everything before it.

    Teacher forcing through the same engine, up to 64 tokens per decode.
    """
    engine = llm.session.engine
    engine.cancel(raised=False)
    llm.reset()  # the KV will change; a prefix common to two calls is not read twice
    most = min(MAX_DRAFT, llm.session.loop.longest + 1)
    rows = [len(answer[i : i + most]) for i in range(0, len(answer), most)]
    yield from replay(engine, prompt, answer, [(n, n) for n in rows])


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
