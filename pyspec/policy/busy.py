"""Notices that the machine is busy: decodes that take several times what the curve says, for long."""

from __future__ import annotations

TIMES = 4.0
LONG = 20
"""Rounds in a row: a stall is over sooner."""

SENTENCE = (
    "decodes take more than %d times what they took: other programs use this machine, and threads that wait "
    "for each other make it worse; fewer may be faster (-t N, n_threads=N)"
)


class Busy:
    """Counts slow rounds.

    least: the smallest ratio of a decode's time to the curve's that this machine reaches: 1 where the curve was measured,
    infinity where it was assumed, until a round shows it.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._slow = 0
        self._noted = False

    def notes(self, ratio: float) -> bool:
        """Whether it is to be said now, which is once. ratio: this decode's time to the curve's, 0 where that is not known."""
        if not ratio or self._noted:
            return False
        self._least = min(self._least, ratio)
        self._slow = self._slow + 1 if ratio > TIMES * self._least else 0
        self._noted = self._slow >= LONG
        return self._noted
