"""When a side model is used: while it gains, and now and then on trial."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import astuple

from pyspec.draft.types import MEMORY
from pyspec.errors import OptionError

# tokens a round that a gain has to exceed: of that size is what the curve does not know
_LEAST = 0.1
_PRIOR_WEIGHT = 3.0  # observed rounds that a prior expectation counts for
_TRIAL = 6  # rounds of a trial
_RATE = 0.008  # share of the tokens since the last trial that the next one may lose
_CREDIT = 16.0  # most tokens that a trial may lose


class SwitchState(msgspec.Struct):
    """What a `UseSwitch` saw. Raises OptionError for impossible numbers."""

    count: float = 0.0  # rounds with the model
    mean: float = 0.0  # their mean gain
    tokens: float = 0.0  # their mean tokens

    def __post_init__(self) -> None:
        if not (0.0 <= self.count < 1e9 and 0.0 <= self.tokens < 1e9 and abs(self.mean) < 1e3):
            raise OptionError("what a switch saw contradicts itself")

    def aged(self, weight: float) -> SwitchState:
        """The same, counting for `weight` of its rounds."""
        return SwitchState(weight * self.count, self.mean, self.tokens)

    def mixed(self, other: SwitchState) -> SwitchState:
        """Half of this and half of another."""
        return SwitchState(*(0.5 * (a + b) for a, b in zip(astuple(self), astuple(other))))


class UseSwitch:
    """Decides for one side model and batches of one size.

    Gains are tokens per round and sequence beyond rounds without the model, computed from the cost curve. Stalls of the machine
    and the time for catching up therefore do not count as evidence. Catching up (reading a prompt, or the tokens of rounds
    without drafts) is weighed before it is paid for, against what the rest of the answer can bring.
    """

    def __init__(self) -> None:
        self.seen = SwitchState()  # earlier processes included
        self._credit = 0.0
        self._trial: dict[int, int] = {}  # rounds left of each sequence's trial

    def gain(self, expected: float) -> float:
        """Gain per round to count on: the observed mean combined with the `expected` gain."""
        return self._combined(self.seen.mean, expected)

    def _combined(self, observed: float, prior: float) -> float:
        count = self.seen.count
        return (count * observed + _PRIOR_WEIGHT * prior) / (count + _PRIOR_WEIGHT)

    def share(self, expected: float) -> float:
        """Share of the tokens of rounds with it that are its gain: under 1, and 0 where it gains none."""
        gain = max(0.0, self.gain(expected))
        return gain / max(self._pace(gain), 1.0 + gain)

    def on(self, seq: int, expected: float, cost: Callable[[], float], left: float) -> bool:
        """Whether to use the model.

        Args:
            seq: the sequence's number.
            expected: gain per round expected from other sources than observed rounds.
            cost: returns the tokens that catching up costs; not asked in most rounds without the model.
            left: tokens that the sequence may still have.
        """
        gain = self.gain(expected)
        if gain > _LEAST and gain * left / self._pace(gain) > cost():  # it pays
            return True
        if self._trial.get(seq, 0) > 0:  # a trial goes on
            self._trial[seq] -= 1
            return True
        if not self._spend(_TRIAL * max(0.0, _LEAST - gain), cost, left):
            return False
        self._trial[seq] = _TRIAL - 1
        return True

    def _spend(self, loss: float, cost: Callable[[], float], left: float) -> bool:
        """Whether the credit pays for a trial that may lose this many tokens and the cost; if so the credit is spent."""
        credit = min(self._credit, left)
        if loss > credit or loss + cost() > credit:
            return False
        self._credit = 0.0
        return True

    def _pace(self, gain: float) -> float:
        """Tokens per round with the model; before any round, the target's own and the expected gain."""
        return self._combined(self.seen.tokens, 1.0 + max(0.0, gain))

    def used(self, gain: float, tokens: float = 1.0) -> None:
        """Learn a sequence's gain and tokens in a round with the model."""
        seen = self.seen
        seen.count = min(seen.count + 1.0, MEMORY)
        seen.mean += (gain - seen.mean) / seen.count
        seen.tokens += (tokens - seen.tokens) / seen.count

    def earn(self, tokens: float) -> None:
        """Credit a share of the emitted tokens to trials."""
        self._credit = min(_CREDIT, self._credit + _RATE * tokens)

    def begin(self, seq: int) -> None:
        """Begin another sequence under this number."""
        self._trial.pop(seq, None)

    def move(self, seq: int, to: int) -> None:
        """A sequence goes on under another number, with its trial."""
        if seq in self._trial:
            self._trial[to] = self._trial.pop(seq)
