"""A running sequence, and how many tokens lookup may lose in it."""

from __future__ import annotations

from pyspec.policy.types import Place

_SHARE = 0.03  # share of a sequence's tokens that lookup's drafts may lose


class RunningText:
    """Where a sequence began and stands, and the tokens that lookup's drafts cost beyond those they brought."""

    def __init__(self, depth: int) -> None:
        self.began = depth
        self.place = Place(0, 0, depth=depth)
        self.lost = 0.0

    @property
    def emitted(self) -> int:
        """Tokens generated so far."""
        return self.place.depth - self.began

    def bearable(self, usual: float) -> float:
        """Tokens that lookup may still lose; tokens it has won may be lost too.

        Matches look the same in every sequence. In one that does not suit lookup they fail one after the other, and what was
        learned across sequences does not prevent that.

        Args:
            usual: tokens of a usual sequence.
        """
        return _SHARE * (self.emitted + min(float(self.place.left), usual)) - self.lost
