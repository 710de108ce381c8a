"""Waiting for a fact rather than for a time."""

import time
from collections.abc import Callable

DEADLINE_S = 120
"""Ends a hang, and says nothing about speed: a machine that others use may take its time. bench/ measures how soon."""


def wait(fact: Callable[[], object]) -> None:
    """Until `fact` is true. Fails after DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end, "what was waited for never came"
        time.sleep(0.005)
