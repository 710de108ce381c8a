"""Whether the draft model is used in a round: a gate whose contexts say how this answer has gone."""

from __future__ import annotations

from bisect import bisect

from pyspec.policy.gate import Gate, Starts

# Contexts of the gate: the class of the running gain of this answer's drafts, or one of _NEAR,
# _FAR, _START: nothing drafted for a few rounds, for long, since the answer began.
_TREND_EDGES = (-0.3, -0.1, 0.0, 0.1, 0.3, 0.8)
_NEAR = len(_TREND_EDGES) + 1
_FAR, _START = _NEAR + 1, _NEAR + 2
_NEAR_ROUNDS = 4
_TREND_WEIGHT = 0.3  # of the last gain in the running gain
_TRIAL_ROUNDS = 3  # rounds drafted at an answer's start, where the draft's KV is up to date


class Drafting:
    """Gains are in tokens a round and sequence, against plain decoding.

    Each power of two of the number of sequences has a gate of its own: what pays for one seldom
    pays for sixteen.
    """

    def __init__(self) -> None:
        self._gates: dict[int, Gate] = {}
        self._gate = Gate(_START + 1)
        self._starts = Starts()
        self._context = _START
        self._drafted = 0
        self._trend = 0.0
        self.missed = 0  # rounds since the last draft: what the draft must catch up with

    def among(self, n_seq: int) -> None:
        """So many sequences take part from now on."""
        self._gate = self._gates.setdefault(n_seq.bit_length(), Gate(_START + 1))

    def ask(self, gain: float) -> tuple[bool, bool]:
        """(draft this round, as a probe); `gain` is what the model of drafting expects."""
        trial = self._context != _FAR and self._drafted < _TRIAL_ROUNDS and self._starts.open
        return self._gate.ask(self._context, gain, trial)

    def rest(self) -> None:
        """A round without a draft."""
        self.missed += 1
        if self._context != _START:
            self._context = _NEAR if self.missed <= _NEAR_ROUNDS else _FAR
        elif self.missed > _NEAR_ROUNDS:
            self._context = _FAR
        self._gate.rest()

    def tell(self, gain: float, again: float, realised: float, caught_up: float) -> None:
        """A round with a draft: its expected gain, and what it really gained.

        `again` is the expected gain of another such round, which has nothing to catch up with;
        `caught_up` is what catching up cost. At an answer's start that is the prompt's reading,
        which only the whole answer can earn back, so it is not held against the gate.
        """
        self._trend += (_TREND_WEIGHT if self._drafted else 1.0) * (again - self._trend)
        self._drafted += 1
        self.missed = 0
        then = bisect(_TREND_EDGES, self._trend)
        self._starts.add(realised)
        if self._context == _START:
            realised += caught_up
        self._gate.tell(gain, realised, self._context, then)
        self._context = then

    def begin_answer(self) -> None:
        """A new answer: what came before says nothing about its text."""
        self._starts.begin()
        self._context = _START
        self.missed = self._drafted = 0

    @property
    def value(self) -> float:
        """The estimate for a draft now."""
        return self._gate.value(self._context)
