"""What a draft is expected to bring, and learning from what came of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pyspec.policy.acceptance import Features, read_companion, read_draft
from pyspec.policy.lookups import TextRecord
from pyspec.policy.stopping import survivals
from pyspec.policy.types import LOOKUP, Draft, SeqOutcome

if TYPE_CHECKING:
    from pyspec.policy.acceptance import Learned

_RECENT = 0.9  # what an observed token leaves of the running acceptance before it
_UNKNOWN = 0.5  # the running acceptance of a sequence without any


class Forecast(NamedTuple):
    """One draft's chances by position: without the companion's view, with it, and the better one's survival."""

    draft: Draft
    base: list[Features]
    full: list[Features] | None
    without: list[float]
    with_: list[float]
    survival: list[float]


class Forecaster:
    """Reads drafts by what is learned; remembers how each sequence's drafts have gone lately."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._recent: dict[int, float] = {}
        self._lookups: defaultdict[int, TextRecord] = defaultdict(TextRecord)

    def read(self, draft: Draft) -> Forecast:
        """Estimate a draft's acceptance and survival."""
        learned = self._learned
        if draft.source == LOOKUP:
            chance = learned.lookup.predict(draft.match_length, draft.n, draft.choices)
            share = self._lookups[draft.seq].share
            return Forecast(draft, [], None, chance, [], [share * s for s in survivals(chance)])
        base = read_draft(draft, self._recent.get(draft.seq, _UNKNOWN))
        without = [learned.draft.predict(x) for x in base]
        full = read_companion(draft, base) if draft.s is not None else None
        if not full:
            return Forecast(draft, base, None, without, [], survivals(without))
        with_ = [learned.companion.predict(x) for x in full]
        best = with_ if learned.companion_helps else without
        return Forecast(draft, base, full, without, with_, survivals(best))

    def learn(self, forecast: Forecast, seq: SeqOutcome) -> None:
        """Update estimators at the observed positions: up to the first refusal, not beyond."""
        draft, learned, hits = forecast.draft, self._learned, seq.hits(forecast.draft.n)
        if draft.source == LOOKUP:
            learned.lookup.update(draft.match_length, hits, draft.choices)
            text, seen = self._lookups[seq.seq], seq.n_verified or len(hits)
            text.add(sum(forecast.survival[:seen]) / text.share, sum(hits[:seen]))
            return
        for i, (x, chance, hit) in enumerate(
            zip(forecast.base, forecast.without, hits, strict=False)
        ):
            learned.learn_draft(i, x, chance, hit)
            if forecast.full is not None:
                learned.learn_companion(forecast.full[i], chance, forecast.with_[i], hit)
        if hits:
            recent, share = self._recent.get(seq.seq, _UNKNOWN), sum(hits) / len(hits)
            self._recent[seq.seq] = share + (recent - share) * _RECENT ** len(hits)

    def begin_answer(self) -> None:
        """All sequences begin anew."""
        self._recent.clear()
        for text in self._lookups.values():
            text.begin()

    def begin_sequence(self, seq: int) -> None:
        """Another text now goes on under this number."""
        self._recent.pop(seq, None)
        self._lookups[seq].begin()
