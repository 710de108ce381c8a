"""Acceptance rules: what happens where the target disagrees with a drafted token.

`Strict` accepts a drafted token only if the target chooses it too, so the text is the target's own at every temperature. `Margin`
also accepts the target's runner-up where the target hardly prefers its first choice (MARS, arXiv 2601.15498), with a bound in
nats that the paper does not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pyspec.errors import OptionError
from pyspec.sampling.options import check_ranges

MARGIN_OPTIONS = ("theta", "gap", "budget", "confirm")  # those that interfaces have as options


@dataclass(frozen=True)
class Strict:
    """Accept a drafted token only if it equals the target's own choice."""

    name = "strict"
    """The rule's name in results."""


@dataclass(frozen=True)
class Margin:
    """Also accept the target's runner-up if the draft proposed it and the target's two largest logits are close.

    With z1 >= z2 the two largest raw logits of a row, the gate is open where `z1 > 0 and z2 / z1 > theta and z1 - z2 <= gap`.
    End-of-generation and control tokens are never relaxed, nor is any token while a grammar, penalties, logit bias or a logits
    processor changes the row.

    Above temperature 0 with coupled noise, all of this holds for logits with their noise, logit + T * G: the draft's draw is
    accepted if it is the runner-up to the target's, at a gap of (z1 - z2) / T nats. If llama.cpp draws, the target draws its own
    token first, and a drafted token that equals it is accepted. Otherwise, if the gate is open, the drafted token is taken if it
    is one of the row's two best and truncation (top-k, top-p, min-p, typical) left both of them to draw from. Gaps count in the
    distribution in force: (z1 - z2) / T at temperature T. So the answer's distribution is sharper than the target's at that
    temperature; with `noise="llama.cpp"` a relaxed token costs -log of its probability, whether it is the best or the runner-up.
    At `budget=0` nothing is relaxed.

    Attributes:
        theta: Smallest ratio of raw logits, 0 to 1: 0.9 in the paper, 1 closes the gate. Up to 0.9 it hardly matters at a gap of
            1 nat.
        gap: Largest gap, in nats; `math.inf` for the paper's rule, which has no such limit.
        budget: Sum of gaps allowed in one answer, in nats, or None; 0 closes the gate. The answer's relaxed tokens are together
            at most that much less likely than the likeliest ones at the same places.
        lookup: Whether tokens from prompt lookup may be relaxed too. Lookup proposes what the text has said before, so relaxing
            it makes answers repeat themselves; False costs a few of the tokens that the rule gains.
        confirm: How many drafted tokens directly after it must be the target's own choices, in rows of the same verify: a
            deviation has to rejoin the target at once (FLy, arXiv 2511.22972, has such a window). With fewer verified tokens
            after it, a token is not relaxed. The target's choices are its draws if noise is coupled, its likeliest tokens if
            llama.cpp draws.

    Raises:
        OptionError: A number is outside its range.
    """

    name = "margin"
    """The rule's name in results."""

    theta: float = 0.9
    gap: float = 1.0
    budget: float | None = None
    lookup: bool = True
    confirm: int = 0

    def __post_init__(self) -> None:
        check_ranges(vars(self))

    @classmethod
    def of(cls, options: Any) -> Margin:
        """Make the rule from an object with the fields of `MARGIN_OPTIONS`. Raises OptionError."""
        return cls(**{name: getattr(options, name) for name in MARGIN_OPTIONS})

    @property
    def limits(self) -> tuple[float, float, float]:
        """theta, gap and budget in nats, as the extension takes them: infinity for no budget."""
        budget = math.inf if self.budget is None else self.budget
        return self.theta, self.gap, budget


Verification = Strict | Margin


def check_rule(rule: object) -> None:
    """Raise OptionError if this is no rule; otherwise the error would come in the middle of an answer."""
    if not isinstance(rule, Strict | Margin):
        raise OptionError(f"verification is {rule!r}", "give Strict() or Margin()")
