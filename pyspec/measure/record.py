"""Recording rounds: what would be drafted from every position of a greedy answer.

The answer is decoded plainly, and before each token the draft proposes up to `kmax` tokens and the
companion judges them.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pyspec.drafters import LookupDrafter
from pyspec.measure.rounds import Chain, Miss
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import LOOKUP, MODEL, Draft, Outcome, Place, Plan
from pyspec.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from pyspec.llama import SpeculativeLlama


class _Recording(LengthPolicy):
    """Drafts kmax tokens each round, keeps them, and verifies none."""

    def __init__(self, engine: Any, kmax: int) -> None:
        super().__init__()
        self._engine, self._kmax = engine, kmax
        self.drafts: dict[int, tuple[list[int], Draft]] = {}
        self.round = 0

    def plan(self, places: Sequence[Place]) -> Plan:
        """See LengthPolicy."""
        return Plan([min(self._kmax, place.room) for place in places], use_companion=True)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """See LengthPolicy."""
        (draft,) = drafts
        view = self._engine.drafted(0)
        self.drafts[self.round] = [int(view.token[i]) for i in range(draft.n)], draft
        return [0]

    def observe(self, outcome: Outcome) -> None:
        """See LengthPolicy."""
        self.round += 1
        self.counts.add(outcome)


def record_answer(
    llm: SpeculativeLlama,
    prompt: Sequence[int],
    *,
    name: str | int,
    category: str,
    max_tokens: int = 128,
    kmax: int = 16,
    until: float = math.inf,
) -> list[Chain]:
    """The chains of one greedy answer, model and lookup, by position; the answer ends at `until` on `perf_counter`.

    Chains near the end are shorter, as in the loop: the token after the draft must fit, too.
    """
    recording = _Recording(llm._open().session.engine, kmax)  # noqa: SLF001 - measuring looks inside
    tokens: list[int] = []
    steps = llm.steps(
        prompt,
        Sampling(temperature=0.0),
        max_tokens=max_tokens,
        keep_rows=True,
        policy=recording,
        drafting="model",
    )
    for step in steps:
        tokens += [token.id for token in step.tokens]
        if perf_counter() > until:
            break
    steps.close()
    rows = [llm.scores[len(prompt) - 1 + i] for i in range(len(tokens))]
    margins = [_margin(row) for row in rows]
    chains: list[Chain] = []
    index = LookupDrafter()
    for t in range(len(tokens)):
        if t in recording.drafts:
            drafted, draft = recording.drafts[t]
            chains += _chain(tokens, t, drafted, draft, name, category, margins)
        found = index.propose(0, [*prompt, *tokens[:t]], min(kmax, len(tokens) - t - 1))
        if found.tokens:
            draft = Draft(0, len(found.tokens), source=LOOKUP)
            draft.match_length, draft.choices = found.match_length, found.choices
            chains += _chain(tokens, t, list(found.tokens), draft, name, category, margins)
    for chain in chains:
        chain.prompt = len(prompt)
    return chains


_Margin = tuple[float, float, float, int]


def _margin(row: npt.NDArray[np.float32]) -> _Margin:
    two = np.argpartition(row, len(row) - 2)[-2:]
    second, first = sorted((int(i) for i in two), key=lambda i: float(row[i]))
    z1, z2 = float(row[first]), float(row[second])
    return z1 - z2, z2 / z1 if z1 else 0.0, z1, second


def _chain(
    tokens: Sequence[int],
    t: int,
    drafted: list[int],
    draft: Draft,
    name: str | int,
    category: str,
    margins: Sequence[_Margin],
) -> Iterable[Chain]:
    """The chain of one position, cut where the answer ends: what came after is not known."""
    n = min(len(drafted), len(tokens) - t)
    if n < 1:
        return
    same = next((i for i in range(n) if drafted[i] != tokens[t + i]), n)
    chain = Chain(name, category, t, len(tokens), [int(i < same) for i in range(n)])
    chain.source = draft.source
    chain.match_length, chain.choices = draft.match_length, draft.choices
    if same < n and t + same < len(margins):
        gap, ratio, z1, second = margins[t + same]
        chain.miss = Miss(
            round(gap, 4), round(ratio, 5), round(z1, 3), int(drafted[same] == second)
        )
    if draft.source == MODEL:
        chain.p = [round(x, 6) for x in draft.p[:n]]
        chain.h = [round(x, 5) for x in draft.entropy[:n]]
        if draft.s and draft.a and draft.pc and draft.agree:
            chain.s = [round(x, 5) for x in draft.s[:n]]
            chain.a = [round(x, 5) for x in draft.a[:n]]
            chain.pc = [round(x, 6) for x in draft.pc[:n]]
            chain.agree = [int(x) for x in draft.agree[:n]]
    yield chain
