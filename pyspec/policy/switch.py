"""When a side model is used at all: while it gains, and now and then to see whether it would."""

from __future__ import annotations

from math import exp, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = 64.0  # rounds the mean gain looks back on
_PRIOR_WEIGHT = 3.0  # observed rounds that an expectation counts for
_TRIAL = 6  # rounds of a trial
_RATE = 0.004  # share of the tokens since the last trial that the next one may lose
_CREDIT = 16.0  # tokens that one may lose at most
_SHARE_LEFT = 0.125  # of the tokens that are left, what one trial may lose
_SHARE_NEW = 0.03  # the same for a look at a new text, so that it stays at 0.97 of plain at least
_SPREAD = 0.3  # standard deviation of acceptance from text to text, in logits


class UseSwitch:
    """Decides for one side model and batches of one size.

    Gains are in tokens a round and sequence against not using it, by the cost curve: what a stall of the machine or catching
    up with the text took is no evidence. Catching up (an unread prompt, rounds without drafts) is a price, weighed before it
    is paid against what the rest of the answer can still bring.
    """

    def __init__(self) -> None:
        self._mean = self._count = 0.0
        self._credit = 0.0
        # rounds left of a text's trial, 0 where it was used without one
        self._trial: dict[int, int] = {}

    def gain(self, expected: float) -> float:
        """Tokens a round to be gained: `expected` on other grounds, and what was seen."""
        return (self._count * self._mean + _PRIOR_WEIGHT * expected) / (self._count + _PRIOR_WEIGHT)

    def on(
        self, seq: int, expected: float, price: float, left: float, rounds: float, more: float = 0.0
    ) -> bool:
        """Whether to use it.

        price: tokens that catching up costs; left: tokens, and rounds, that the text may still have; more: what is gained
        beyond the expected in a text that suits it.
        """
        gain = self.gain(expected)
        if gain * rounds > price:
            self._trial.setdefault(seq, 0)
            return True
        if self._trial.get(seq, 0) > 0:
            self._trial[seq] -= 1
            return True
        loss = price + _TRIAL * max(0.0, -gain)
        afford = min(self._credit, _SHARE_LEFT * left)
        if seq not in self._trial:  # nothing was seen of this text, which may be better than others
            share = _SHARE_NEW if self._count else _SHARE_LEFT
            afford = max(afford, min(promise(gain, gain + more) * rounds, share * left))
        if loss > afford:
            return False
        self._credit = 0.0
        self._trial[seq] = _TRIAL - 1
        return True

    def used(self, gain: float) -> None:
        """A round with it gained so many tokens."""
        self._count = min(self._count + 1.0, _MEMORY)
        self._mean += (gain - self._mean) / self._count

    def earn(self, tokens: float) -> None:
        """So many tokens were emitted; a share of them may be spent on trials."""
        self._credit = min(_CREDIT, self._credit + _RATE * tokens)

    def begin(self, seq: int | None = None) -> None:
        """Another text goes on under this number, or under all of them."""
        if seq is None:
            self._trial.clear()
        else:
            self._trial.pop(seq, None)


def promise(gain: float, better: float) -> float:
    """Expected gain of a text whose own is not known, if it is used only where it is above 0.

    Acceptance differs from text to text by about _SPREAD in logits; Gauss-Hermite with three points takes the mean text with
    2/3, and one that is better by sqrt(3) of it, which gains `better`, with 1/6.
    """
    return max(0.0, gain) * 2.0 / 3.0 + max(0.0, better) / 6.0


def suited(table: Sequence[float]) -> list[float]:
    """Chances of acceptance in a text that suits the draft: sqrt(3) standard deviations better than the mean one."""
    odds = exp(-sqrt(3.0) * _SPREAD)
    return [1.0 / (1.0 + (1.0 - p) / p * odds) for p in table]
