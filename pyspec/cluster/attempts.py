"""What tells pieces of work that kill whoever does them: one for all workers, in an actor of its own."""

from __future__ import annotations


class Attempts:
    """How often each piece of work was begun that has not ended; Ray Data begins what killed an actor again for ever."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def begin(self, work: str) -> int:
        """How often it was begun before."""
        before = self._times.get(work, 0)
        self._times[work] = before + 1
        return before

    def end(self, work: str) -> None:
        """It did not kill anybody."""
        self._times.pop(work, None)
