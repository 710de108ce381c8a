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


class Forecast(NamedTuple):
    """One draft's chances by position: without the companion's view, with it, and the better one's survival."""

    draft: Draft
    bins: list[int]
    full: list[Features] | None
    without: list[float]
    with_: list[float]
    survival: list[float]


class Forecaster:
    """Reads drafts by what is learned; remembers how each text's lookup drafts have gone."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._lookups: defaultdict[int, TextRecord] = defaultdict(TextRecord)

    def read(self, draft: Draft) -> Forecast:
        """Estimate a draft's acceptance and survival."""
        learned = self._learned
        if draft.source == LOOKUP:
            chance = learned.lookup.predict(draft.match_length, draft.n, draft.choices)
            share = self._lookups[draft.seq].share
            return Forecast(draft, [], None, chance, [], [share * s for s in survivals(chance)])
        bins, table = read_draft(draft), learned.calibration.table
        without = [table[k] for k in bins]
        full = read_companion(draft, len(bins)) if draft.s is not None else None
        if not full:
            return Forecast(draft, bins, None, without, [], survivals(without))
        with_ = [learned.companion.predict(x) for x in full]
        best = with_ if learned.companion_helps else without
        return Forecast(draft, bins, full, without, with_, survivals(best))

    def learn(self, forecast: Forecast, seq: SeqOutcome) -> None:
        """Update estimators at the observed positions: up to the first refusal, not beyond."""
        draft, learned, hits = forecast.draft, self._learned, seq.hits(forecast.draft.n)
        if draft.source == LOOKUP:
            learned.lookup.update(draft.match_length, hits, draft.choices)
            text, seen = self._lookups[seq.seq], seq.n_verified or len(hits)
            text.add(sum(forecast.survival[:seen]) / text.share, sum(hits[:seen]))
            return
        for i, (k, chance, hit) in enumerate(
            zip(forecast.bins, forecast.without, hits, strict=False)
        ):
            learned.learn_draft(i, k, chance, hit)
            if forecast.full is not None:
                learned.learn_companion(forecast.full[i], chance, forecast.with_[i], hit)

    def begin_answer(self) -> None:
        """All sequences begin anew."""
        for text in self._lookups.values():
            text.begin()

    def begin_sequence(self, seq: int) -> None:
        """Another text now goes on under this number."""
        self._lookups[seq].begin()
