"""A text that goes on, and what drafts may lose in it."""

from __future__ import annotations

from pyspec.policy.types import LOOKUP, MODEL, Place

_SHARE = 0.03  # of a text's tokens, what drafts of each source may lose


class RunningText:
    """Where a text began and stands, and the tokens that drafts of each source have cost it beyond those they brought."""

    def __init__(self, depth: int) -> None:
        self.began = depth
        self.place = Place(0, 0, depth=depth)
        self.lost = {LOOKUP: 0.0, MODEL: 0.0}

    @property
    def emitted(self) -> int:
        """Tokens that it has got so far."""
        return self.place.depth - self.began

    def bearable(self, source: str, usual: float) -> float:
        """Tokens that drafts of this source may still lose; what they have won they may lose, too.

        Matches and probabilities look the same in every text. In one that does not suit them drafts fail one after the other,
        and what is learned of all texts is no guard.

        Args:
            source: LOOKUP or MODEL.
            usual: tokens of a usual text.
        """
        return _SHARE * (self.emitted + min(float(self.place.left), usual)) - self.lost[source]
