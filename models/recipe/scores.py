"""Counting agreement between a draft's guesses and the target's own answers.

Guesses are ids [steps, rows] at the rows that predict an answer: the first choice at draft step 1, 2, ..., or -1 for none. An
independent draft has one step, since its guess does not depend on how many tokens before it were drafted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspec.draft.lookup import LookupDrafter
from pyspec.sampling.verification import Margin


@dataclass
class Score:
    """Sums over answers; see the functions for what they mean."""

    hits: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    relaxed: int = 0
    steps: list[list[int]] = field(default_factory=list)
    rounds: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def add(self, kind: str, answer: NDArray[Any], ids: NDArray[np.int64]) -> None:
        """Add one answer: its rows (see `rows.Meta`) and the guesses at them."""
        strict = ids == answer["ids"][None, :, 0]
        margin = strict | margin_accepts(answer, ids)
        self.hits[kind] = self.hits.get(kind, 0) + int(strict[0].sum())
        self.rows[kind] = self.rows.get(kind, 0) + len(answer)
        self.relaxed += int(margin[0].sum())
        self._add_steps(strict)
        for rule, right in (("strict", strict), ("margin", margin)):
            for k in (4, 8):
                got = self.rounds.setdefault((rule, k), [0, 0])
                accepted, rounds = accepted_in_rounds(right, k)
                got[0], got[1] = got[0] + accepted, got[1] + rounds

    def _add_steps(self, strict: NDArray[np.bool_]) -> None:
        """Agreement at step j where the j-1 tokens before it were guessed right."""
        for step in range(len(strict)):
            if len(self.steps) <= step:
                self.steps.append([0, 0])
            reached = np.ones(strict.shape[1] - step, bool)
            for before in range(step):
                reached &= strict[before, before : strict.shape[1] - step + before]
            self.steps[step][0] += int((strict[step, step:] & reached).sum())
            self.steps[step][1] += int(reached.sum())

    def share(self, kind: str | None = None) -> float:
        """Share of positions where the first choice is the target's."""
        if kind is not None:
            return self.hits.get(kind, 0) / max(1, self.rows.get(kind, 0))
        return sum(self.hits.values()) / max(1, sum(self.rows.values()))

    def margin_share(self) -> float:
        """Share of positions that the margin rule accepts."""
        return self.relaxed / max(1, sum(self.rows.values()))

    def length(self, rule: str, k: int) -> float:
        """Mean accepted tokens of a round of `k` drafted ones."""
        accepted, rounds = self.rounds.get((rule, k), [0, 0])
        return accepted / max(1, rounds)

    def by_step(self) -> list[float]:
        """Agreement at step 1, 2, ... given that all tokens before were right."""
        return [right / max(1, count) for right, count in self.steps]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "share": self.share(),
            "margin_share": self.margin_share(),
            "by_category": {kind: self.share(kind) for kind in self.rows},
            "lengths": {f"{rule}-{k}": self.length(rule, k) for rule, k in self.rounds},
            "by_step": self.by_step(),
            "rows": sum(self.rows.values()),
        }


def margin_accepts(answer: NDArray[Any], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where the margin rule at its defaults takes a guess that is the target's runner-up (`Margin`)."""
    logits = answer["logp"][:, :2].astype(np.float64) + answer["lse"][:, None]
    first, second = logits[:, 0], logits[:, 1]
    close = (first > 0) & (second > Margin.theta * first) & (first - second <= Margin.gap)
    return np.asarray(close[None, :] & (ids == answer["ids"][None, :, 1]), np.bool_)


def accepted_in_rounds(right: NDArray[np.bool_], k: int) -> tuple[int, int]:
    """(accepted tokens, rounds) of drafting `k` a round along one answer.

    `right` [steps, rows]; later draft steps than it has use its last row. Under the margin rule
    this goes on along the target's own text after a relaxed token: an estimate.
    """
    count = right.shape[1]
    place = accepted = rounds = 0
    while place < count:
        n = 0
        while n < k and place + n < count and right[min(n, len(right) - 1), place + n]:
            n += 1
        accepted, rounds, place = accepted + n, rounds + 1, place + n + 1
    return accepted, rounds


def lookup(rows: NDArray[Any], prompt: int, steps: int = 4) -> NDArray[np.int64]:
    """What pyspec's own lookup drafts (`LookupDrafter`), at every draft step."""
    drafter = LookupDrafter()
    tokens = [int(t) for t in rows["token"]]
    count = len(tokens) - prompt + 1
    ids = np.full((steps, count), -1, np.int64)
    for row in range(count):
        drafted = drafter.propose(0, tokens[: prompt + row], min(steps, count - row)).tokens
        for step, token in enumerate(drafted):
            ids[step, row + step] = token
    return ids
