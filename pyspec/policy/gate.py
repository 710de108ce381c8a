"""When to spend time on a draft or a companion at all.

A gate weighs, per context, what the next use is expected to gain against not using it. It learns
from uses only, so it probes while off, ever more rarely, and it may not lose more than a small
share of all tokens: a debt account of realised losses closes it whatever the estimates say.
"""

from __future__ import annotations

PROBE_MIN, PROBE_MAX = 8, 256

_MEMORY = 64.0
_MODEL_WEIGHT = 6.0
_AHEAD = 0.8  # weight of what following uses bring: a probe may open a good stretch
_PROBE_RATE = 0.002  # share of tokens that one kind of probe may be expected to lose
_RATE = 0.008  # share of tokens that probing may lose in the long run
_ALLOWANCE = 1.0  # tokens it may lose beyond that share
_CREDIT = -6.0  # tokens of earlier gains that may be lost again before it closes


class Starts:
    """Whether a new answer is worth a trial, from what answers gained that began with one.

    A trial costs the draft's reading of the prompt, which only the whole answer can earn back. So
    trials go on while they gain on average, and otherwise become rarer. The pauses are no
    multiples of each other, lest they keep missing one of several texts that come in turn. The
    start is hopeful: a few answers may lose a little before one shows what can be gained.
    """

    _PAUSES = (1, 2, 3, 5, 7, 11, 17)

    def __init__(self) -> None:
        self.value = 2.0
        self._count = 6.0
        self._net = 0.0
        self._tried = False
        self._wait = 0
        self._pause = 0

    def begin(self) -> None:
        """A new answer; the last one's gain is complete."""
        if self._tried:
            self._count = min(self._count + 1.0, 12.0)
            self.value += (self._net - self.value) / self._count
            if self.value > 0.0 or self._net > 0.0:
                self._pause = 0
            self._wait = 0 if self.value > 0.0 else self._PAUSES[self._pause]
            self._pause = min(self._pause + 1, len(self._PAUSES) - 1)
        elif self._wait > 0:
            self._wait -= 1
        self._net, self._tried = 0.0, False

    @property
    def open(self) -> bool:
        """Whether this answer may begin with a trial."""
        return self._tried or self._wait == 0

    def add(self, realised: float) -> None:
        """A drafted round of this answer gained so many tokens."""
        self._tried = True
        self._net += realised


class Gate:
    """On or off by context, values in tokens a round and sequence against the alternative."""

    def __init__(self, contexts: int = 1) -> None:
        self._value = [0.0] * contexts
        self._count = [0.0] * contexts
        self._off = 0
        self._gap = PROBE_MIN
        self._run = 0.0
        self._running = False
        self.debt = 0.0
        self.uses = 0
        self.probes = 0

    def ask(self, context: int = 0, model: float = 0.0, trial: bool = False) -> tuple[bool, bool]:
        """(use it this round, as a probe). Ask once a round, then `tell` or `rest`.

        `model` is a gain expected on other grounds, which counts as a few observations. A `trial`
        is tried unless the debt forbids it: the caller knows that trying is cheap just now.
        """
        if self.debt >= _ALLOWANCE:
            return False, False
        value = self.value(context, model)
        if value > 0.0:
            return True, False
        # A probe must be rare enough for its expected loss, too.
        if trial or self._off >= max(self._gap, -value / _PROBE_RATE):
            self.probes += 1
            return True, True
        return False, False

    def tell(self, gain: float, realised: float, context: int = 0, then: int = 0) -> None:
        """A use ended: expected gain given all that was seen, and what it really gained.

        Gains are in tokens against the alternative, `realised` at the price of plain decoding and
        without costs that somebody else accounts for. `then` is the context of the next round:
        what follows counts where it would be used.
        """
        target = gain
        if then != context and self._count[then] > 0.0:
            target += _AHEAD * max(0.0, self._value[then])
        n = self._count[context] = min(self._count[context] + 1.0, _MEMORY)
        self._value[context] += (target - self._value[context]) / n
        self.debt = max(_CREDIT, self.debt - realised)
        self._pay(1.0)
        self.uses += 1
        self._run += gain
        self._running = True
        self._off = 0

    def rest(self, tokens: float = 1.0) -> None:
        """A round without use; `tokens` it brought."""
        if self._running:
            self._gap = PROBE_MIN if self._run > 0.0 else min(2 * self._gap, PROBE_MAX)
            self._running, self._run = False, 0.0
        self._off += 1
        self._pay(tokens)

    def _pay(self, tokens: float) -> None:
        if self.debt > 0.0:
            self.debt = max(0.0, self.debt - _RATE * tokens)

    def value(self, context: int = 0, model: float = 0.0) -> float:
        """The estimate of a context, tokens a round."""
        n = self._count[context]
        return (n * self._value[context] + _MODEL_WEIGHT * model) / (n + _MODEL_WEIGHT)

    @property
    def values(self) -> list[float]:
        """All running estimates."""
        return list(self._value)
