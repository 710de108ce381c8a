"""When a side model is used at all: while it gains, and now and then to see whether it would."""

from __future__ import annotations

from math import exp, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = 256.0  # rounds that the mean gain looks back on
_PRIOR_WEIGHT = 3.0  # observed rounds that an expectation counts for
_TRIAL = 6  # rounds of a trial
_RATE = 0.008  # share of the tokens since the last trial that the next one may lose
_CREDIT = 16.0  # tokens that any trial may lose at most
_SHARE_LEFT = 0.125  # of the tokens that are left, what a trial or a first look may lose
_SHARE_NEW = 0.03  # the same for a look at any new text: 0.97 of plain decoding is kept
_OWN = 0.55  # share of the rounds beside a lookup that are left to the model, as in recorded everyday answers
_OWN_WEIGHT = 32.0  # rounds that this counts for
_FEW = 2.0  # by how much more than _SPREAD the second text may differ from the first
_SPREAD = 0.3  # standard deviation of acceptance from text to text, in logits


class UseSwitch:
    """Decides for one side model and batches of one size.

    Gains are tokens a round and sequence over rounds without it, by the cost curve: what a stall of the machine took, or
    catching up with the text, is no evidence. Catching up (with an unread prompt, or after rounds without drafts) has a cost.
    Before it is paid, it is weighed against what the rest of the answer can bring.

    Each of its parts can be left out, to see what that is worth.

    Args:
        trials: try it again after it lost.
        looks: try it in a new text, because texts differ.
        priced: let time with it earn a share of what it gains.
    """

    def __init__(self, *, trials: bool = True, looks: bool = True, priced: bool = True) -> None:
        self._trials, self._looks, self._priced = trials, looks, priced
        # rounds with it, and in the mean what one gained and how many tokens it had
        self._count = self._mean = self._tokens = 0.0
        # rounds beside a lookup: those that were left to it, and all
        self._own = self._shared = 0.0
        self._credit = 0.0
        # earlier texts in which it was used, and whether it was in this one
        self._texts, self._new = 0, False
        # rounds left of each text's trial, 0 where it was used without one
        self._trial: dict[int, int] = {}

    def gain(self, expected: float) -> float:
        """Gain a round to count on: what was seen, and what is `expected` on other grounds."""
        return (self._count * self._mean + _PRIOR_WEIGHT * expected) / (self._count + _PRIOR_WEIGHT)

    def share(self, expected: float) -> float:
        """Share of the tokens of rounds with it that it gains: under 1, and 0 where it gains none."""
        gain = max(0.0, self.gain(expected)) if self._priced else 0.0
        return gain / max(self._pace(gain), 1.0 + gain)

    def on(
        self,
        seq: int,
        expected: float,
        cost: float,
        left: float,
        more: float = 0.0,
        *,
        longest: float = 0.0,
        alone: bool = True,
    ) -> bool:
        """Whether to use it.

        Args:
            seq: the text's number.
            expected: the gain a round that is expected on other grounds than what was seen.
            cost: tokens that catching up costs.
            left: tokens that the text may still have.
            more: what is gained beyond the expected in a text that suits it.
            longest: tokens of a usual text: a trial may lose a share of those, since what it finds serves later texts too.
            alone: no lookup takes rounds from it.
        """
        gain = self.gain(expected)
        rounds = (1.0 if alone else self.own) * left / self._pace(gain)
        if gain * rounds > cost:  # it pays
            self._trial.setdefault(seq, 0)
            return True
        if self._trial.get(seq, 0) > 0:  # a trial goes on
            self._trial[seq] -= 1
            return True
        loss = cost + _TRIAL * max(0.0, -gain)
        look = loss <= self._worth_a_look(seq, gain, more, left, rounds)
        if look or self._spend(loss, max(left, longest)):
            self._trial[seq] = _TRIAL - 1
            return True
        return False

    def _spend(self, loss: float, left: float) -> bool:
        """Whether a trial that may lose so many tokens is paid for by what was saved up, which is then spent."""
        if not self._trials or loss > min(self._credit, _SHARE_LEFT * left):
            return False
        self._credit = 0.0
        return True

    def _worth_a_look(
        self, seq: int, gain: float, more: float, left: float, rounds: float
    ) -> float:
        """Tokens that a look at a new text may lose: few texts tell little of the others, which may suit it better."""
        if seq in self._trial or not self._looks:
            return 0.0
        share = max(_SHARE_NEW, _SHARE_LEFT / (1.0 + self._texts))
        # before the first text there is the prior alone, which is of many texts
        better = gain + more * (1.0 + (_FEW / self._texts if self._texts else 0.0))
        return min(promise(gain, better) * rounds, share * left)

    def _pace(self, gain: float) -> float:
        """Tokens of a round with it; before any was seen, the target's own and what is expected to be gained."""
        prior = 1.0 + max(0.0, gain)
        return (self._count * self._tokens + _PRIOR_WEIGHT * prior) / (self._count + _PRIOR_WEIGHT)

    @property
    def own(self) -> float:
        """Share of the rounds beside a lookup that are left to it."""
        return (self._own + _OWN_WEIGHT * _OWN) / (self._shared + _OWN_WEIGHT)

    def shared(self, by_lookup: Sequence[bool]) -> None:
        """Learn whether each of some rounds beside a lookup was the lookup's."""
        for other in by_lookup:
            if self._shared < _MEMORY:
                self._shared += 1.0
            else:
                self._own -= self._own / _MEMORY
            self._own += not other

    def used(self, gain: float, tokens: float = 1.0) -> None:
        """Learn from a round with it what it gained, and how many tokens it had."""
        self._new = True
        self._count = min(self._count + 1.0, _MEMORY)
        self._mean += (gain - self._mean) / self._count
        self._tokens += (tokens - self._tokens) / self._count

    def earn(self, tokens: float) -> None:
        """Put a share of the tokens that were emitted to the credit of trials."""
        self._credit = min(_CREDIT, self._credit + _RATE * tokens)

    def begin(self, seq: int | None = None) -> None:
        """Begin another text under this number, or under all of them."""
        self._texts += self._new
        self._new = False
        if seq is None:
            self._trial.clear()
        else:
            self._trial.pop(seq, None)


def promise(gain: float, better: float) -> float:
    """Expected gain in a text of which nothing is known yet, if the side model is used only where it gains.

    Acceptance differs from text to text by about _SPREAD in logits. Gauss-Hermite quadrature with three points takes the mean
    text with a weight of 2/3, and one that is better by sqrt(3) times that spread, which gains `better`, with 1/6.
    """
    return max(0.0, gain) * 2.0 / 3.0 + max(0.0, better) / 6.0


def suited(table: Sequence[float]) -> list[float]:
    """Acceptance in a text that suits the draft: sqrt(3) standard deviations better than in the mean text."""
    odds = exp(-sqrt(3.0) * _SPREAD)
    return [1.0 / (1.0 + (1.0 - p) / p * odds) for p in table]
