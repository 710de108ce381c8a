"""A registry, in its own actor, that detects blocks and records which kill the actors that run them."""

from __future__ import annotations


class Attempts:
    """Counts attempts at work that has not ended, since Ray Data restarts for ever what killed an actor."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def begin(self, work: str) -> int:
        """Note an attempt. Returns the number of earlier ones."""
        before = self._times.get(work, 0)
        self._times[work] = before + 1
        return before

    def end(self, work: str) -> None:
        """Forget work that ended without killing its actor."""
        self._times.pop(work, None)
