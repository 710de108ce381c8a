"""A running sequence, and how many tokens drafts may lose in it."""

from __future__ import annotations

from pyspec.policy.types import LOOKUP, MODEL, Place

_SHARE = 0.03  # share of a sequence's tokens that drafts of each source may lose


class RunningText:
    """Where a sequence began and stands, and for each source of drafts the tokens that they cost beyond those they brought."""

    def __init__(self, depth: int) -> None:
        self.began = depth
        self.place = Place(0, 0, depth=depth)
        self.lost = {LOOKUP: 0.0, MODEL: 0.0}

    @property
    def emitted(self) -> int:
        """Tokens generated so far."""
        return self.place.depth - self.began

    def bearable(self, source: str, usual: float) -> float:
        """Tokens that drafts of this source may still lose; tokens they have won may be lost too.

        Matches and probabilities look the same in every sequence. In one that does not suit the drafts, they fail one after the
        other, and what was learned across sequences does not prevent that.

        Args:
            source: LOOKUP or MODEL.
            usual: tokens of a usual sequence.
        """
        return _SHARE * (self.emitted + min(float(self.place.left), usual)) - self.lost[source]
