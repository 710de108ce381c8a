"""How many threads decode: fewer while other programs need the processors.

ggml's threads wait for each other after every operation of a model's graph, and they spin while waiting. A thread without a
processor keeps all others waiting for a scheduler time slice of some milliseconds, hundreds of times per token. One thread too
few makes decoding a little slower; one too many, about ten times (`bench/busy.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import perf_counter
from typing import Any

import llama_cpp

from pyspec.machine.machine import Watch

EVERY_S = 0.15
"""Seconds between two looks at the processors: their clocks tick every 10 ms."""

SLACK = 0.25
"""Processors that others may take before a thread gives way: a system is never quite idle."""

_SURE = 2  # consecutive looks that must agree: a short-lived child of this process is over sooner


def threads_beside(most: int, processors: int, others: float) -> int:
    """Threads, 1 to `most`, that find a processor each while other programs take this many processors."""
    return max(1, min(most, processors - ceil(others - SLACK)))


class Threads:
    """The threads of some llama.cpp contexts: `most`, or fewer while others need processors.

    contexts: as llama_cpp has them; they must outlive this. load: the processors' load since the last look.
    """

    def __init__(self, contexts: Sequence[Any], most: int, load: Watch) -> None:
        self._contexts, self._most, self._load = contexts, most, load
        self.n = most
        self._next = 0.0
        self._waiting = 0

    def adapt(self) -> bool:
        """Use as many threads as fit, if it is time to look again; returns whether their number changed."""
        now = perf_counter()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        fit = threads_beside(self._most, self._load.processors, self._load.others())
        self._waiting = self._waiting + 1 if fit != self.n else 0
        if self._waiting < _SURE:
            return False
        self.n, self._waiting = fit, 0
        for context in self._contexts:
            llama_cpp.llama_set_n_threads(context, fit, fit)
        return True
