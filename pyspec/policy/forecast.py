"""What a draft is expected to bring, and learning from what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspec.policy.calibration import mood
from pyspec.policy.choose import survivals
from pyspec.policy.features import Features, read_companion, read_draft
from pyspec.policy.records import LOOKUP, Draft, SeqOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspec.policy.learned import Learned

_LATELY = 0.9  # what an observed token leaves of the running acceptance before it
_UNKNOWN = 0.5  # the running acceptance of a sequence without any


class Forecast(NamedTuple):
    """One draft's chances by position: without the companion's view, with it, and the better one's survival."""

    draft: Draft
    base: list[Features]
    full: list[Features] | None
    without: list[float]
    with_: list[float]
    survival: list[float]
    mood: int


class Forecaster:
    """Reads drafts by what is learned; remembers how each sequence's drafts have gone lately."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._lately: dict[int, float] = {}

    def read(self, draft: Draft) -> Forecast:
        """Estimate a draft's acceptance and survival."""
        learned = self._learned
        if draft.source == LOOKUP:
            chance = learned.lookup.predict(draft.match_length, draft.n, draft.choices)
            return Forecast(draft, [], None, chance, [], survivals(chance), 1)
        lately = self._lately.get(draft.seq, _UNKNOWN)
        base = read_draft(draft, lately)
        without = [learned.draft.predict(f) for f in base]
        full = read_companion(draft, base) if draft.s is not None else None
        if not full:
            return Forecast(draft, base, None, without, [], survivals(without), mood(lately))
        with_ = [learned.companion.predict(f) for f in full]
        best = with_ if learned.companion_helps else without
        return Forecast(draft, base, full, without, with_, survivals(best), mood(lately))

    def learn(self, forecast: Forecast, seq: SeqOutcome) -> None:
        """Update estimators at the observed positions: up to the first refusal, not beyond."""
        draft, learned = forecast.draft, self._learned
        hits = _hits(seq, draft.n)
        if draft.source == LOOKUP:
            learned.lookup.update(draft.match_length, hits, draft.choices)
            return
        for i, (f, hit) in enumerate(zip(forecast.base, hits, strict=False)):
            before = forecast.survival[i - 1] if i else 1.0
            learned.learn_draft(i, f, hit, before, forecast.mood)
            if forecast.full is not None:
                learned.learn_companion(
                    forecast.full[i], forecast.without[i], forecast.with_[i], hit
                )
        if hits:
            lately = self._lately.get(draft.seq, _UNKNOWN)
            share = sum(hits) / len(hits)
            self._lately[draft.seq] = share + (lately - share) * _LATELY ** len(hits)

    def mood(self, seqs: Iterable[SeqOutcome]) -> int:
        """The mood that sequences are in together."""
        lately = [self._lately.get(seq.seq, _UNKNOWN) for seq in seqs]
        return mood(sum(lately) / len(lately))

    def begin_answer(self) -> None:
        """All sequences begin anew."""
        self._lately.clear()

    def forget(self, seq: int) -> None:
        """Another text now goes on under this number."""
        self._lately.pop(seq, None)


def _hits(seq: SeqOutcome, n_drafted: int) -> list[bool]:
    """Whether each drafted token was right, as far as that is known."""
    hits = [True] * seq.n_accepted
    if seq.n_accepted < seq.n_verified:
        hits.append(False)
    elif seq.next_match is not None:
        hits.append(seq.next_match)
    return hits[:n_drafted]
