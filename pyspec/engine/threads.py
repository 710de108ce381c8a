"""How many threads decode: fewer while other programs need the processors.

ggml's threads wait for each other behind every operation of a model's graph, and they wait awake. A thread that has no processor
keeps all others waiting for a time slice of the scheduler, some milliseconds, hundreds of times a token: one thread fewer
decodes a little slower, one too many some ten times (`bench/busy.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import perf_counter
from typing import Any

import llama_cpp

from pyspec.store.watch import Watch

EVERY_S = 0.15
"""Between two looks at the processors: their clocks tick every 10 ms."""

SLACK = 0.25
"""Processors that others may take before a thread gives way to them: a system is never idle."""

_SURE = 2  # looks in a row that must say so: a child of this process that renders is over sooner


def threads_beside(most: int, processors: int, others: float) -> int:
    """Threads that find a processor each, 1 to `most`, beside programs that take so many processors."""
    return max(1, min(most, processors - ceil(others - SLACK)))


class Threads:
    """The threads of some contexts of llama.cpp, `most` where nobody else needs processors.

    contexts: as llama_cpp has them; they must outlive this. load: the processors' load since the last look.
    """

    def __init__(self, contexts: Sequence[Any], most: int, load: Watch) -> None:
        self._contexts, self._most, self._load = contexts, most, load
        self.n = most
        self.steady = True
        """Whether their number has never changed: what decodes took is of `most` threads then."""
        self._next = 0.0
        self._waiting = 0

    def adapt(self) -> bool:
        """Take as many threads as fit, where it is time to look again; whether that changed their number."""
        now = perf_counter()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        fit = threads_beside(self._most, self._load.processors, self._load.others())
        self._waiting = self._waiting + 1 if fit != self.n else 0
        if self._waiting < _SURE:
            return False
        self._use(fit)
        return True

    def _use(self, n: int) -> None:
        self.n, self._waiting, self.steady = n, 0, False
        for context in self._contexts:
            llama_cpp.llama_set_n_threads(context, n, n)
