"""A text as the policy follows it, and what drafts may lose in it."""

from __future__ import annotations

from pyspec.policy.types import LOOKUP, MODEL, Place

_SHARE = 0.03  # of a text, what lookup's drafts may lose in it, and what a model's may


class RunningText:
    """A text that goes on: where it began and stands, and the tokens that drafts of each source lost it so far."""

    def __init__(self, depth: int) -> None:
        self.began = depth
        self.place = Place(0, 0, depth=depth)
        self.lost = {LOOKUP: 0.0, MODEL: 0.0}

    @property
    def emitted(self) -> int:
        """Its tokens."""
        return self.place.depth - self.began

    def bearable(self, source: str, usual: float) -> float:
        """Tokens that the next drafts of this source may lose; usual: tokens of a text. What they have won is theirs to lose.

        Matches and probabilities say the same in every text, and texts differ: in one that does not suit them they disappoint
        one after the other, so that what is learned of all texts is no guard.
        """
        return _SHARE * (self.emitted + min(float(self.place.left), usual)) - self.lost[source]
