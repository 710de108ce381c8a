"""When a side model is used at all: while it gains, and now and then to see whether it would.

Gains are in tokens a round and sequence against not using it, by the cost curve: what a stall of the machine or catching up
with the text took is no evidence. Catching up (an unread prompt, rounds without drafts) is a price, weighed before it is
paid against what the rest of the answer can still bring.
"""

from __future__ import annotations

_MEMORY = 64.0  # rounds the mean gain looks back on
_PRIOR_WEIGHT = 3.0  # observed rounds that an expectation counts for
_NEAR_WEIGHT = 0.25  # of the last round in the gain of its text
_NEAR_FADES = 0.85  # what a round without use leaves of what the text's last rounds said
_TRIAL = 6  # rounds of a trial
_RATE = 0.004  # share of the tokens since the last trial that the next one may lose
_CREDIT = 16.0  # tokens that the first one may lose, and any at most
_SHARE_LEFT = 0.125  # of the tokens that are left, what one trial may lose


class _Text:
    """How the use went in one text lately, and how many rounds of a trial are left."""

    def __init__(self) -> None:
        self.gain = self.weight = 0.0
        self.trial = 0


class UseSwitch:
    """Whether to use a side model in the next round of a text."""

    def __init__(self) -> None:
        self._mean = self._count = 0.0
        self._credit = _CREDIT
        self._texts: dict[int, _Text] = {}

    def gain(self, seq: int, expected: float) -> float:
        """Tokens a round to be gained: `expected` on other grounds, all that was seen, and this text's last rounds."""
        n = self._count
        mean = (n * self._mean + _PRIOR_WEIGHT * expected) / (n + _PRIOR_WEIGHT)
        text = self._texts.get(seq)
        return mean if text is None else mean + text.weight * (text.gain - mean)

    def on(self, seq: int, expected: float, price: float, left: float, rounds: float) -> bool:
        """Whether to use it.

        price: tokens that catching up costs; left: tokens, and rounds, that the text may still have.
        """
        gain = self.gain(seq, expected)
        if gain * rounds > price:
            return True
        text = self._texts.setdefault(seq, _Text())
        if text.trial > 0:
            text.trial -= 1
            return True
        loss = price + _TRIAL * max(0.0, -gain)
        if loss > min(self._credit, _SHARE_LEFT * left):
            return False
        self._credit = 0.0
        text.trial = _TRIAL - 1
        return True

    def used(self, seq: int, gain: float) -> None:
        """A round with it gained so many tokens."""
        self._count = min(self._count + 1.0, _MEMORY)
        self._mean += (gain - self._mean) / self._count
        text = self._texts.setdefault(seq, _Text())
        text.gain = gain if text.weight == 0.0 else text.gain + _NEAR_WEIGHT * (gain - text.gain)
        text.weight = min(1.0, text.weight + _NEAR_WEIGHT * (1.0 - text.weight))

    def rested(self, seq: int) -> None:
        """A round without it."""
        text = self._texts.get(seq)
        if text is not None:
            text.weight *= _NEAR_FADES

    def earn(self, tokens: float) -> None:
        """So many tokens were emitted; a share of them may be spent on trials."""
        self._credit = min(_CREDIT, self._credit + _RATE * tokens)

    def begin(self, seq: int) -> None:
        """Another text goes on under this number."""
        self._texts.pop(seq, None)

    def begin_all(self) -> None:
        """All texts are others."""
        self._texts.clear()
