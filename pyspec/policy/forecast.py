"""What a draft is expected to bring, and learning from what came of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pyspec.policy.calibration import mood
from pyspec.policy.choose import survivals
from pyspec.policy.features import Features, read_companion, read_draft
from pyspec.policy.types import LOOKUP, Draft, SeqOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspec.policy.learned import Learned

_LATELY = 0.9  # what an observed token leaves of the running acceptance before it
_UNKNOWN = 0.5  # the running acceptance of a sequence without any
_GRANTED = 4.0  # expected tokens that count as kept before the first lookup draft of a text
_CARRIED = 0.7  # what the next text inherits of distrust


class Forecast(NamedTuple):
    """One draft's chances by position: without the companion's view, with it, and the better one's survival."""

    draft: Draft
    base: list[Features]
    full: list[Features] | None
    without: list[float]
    with_: list[float]
    survival: list[float]
    mood: int


class _Trust:
    """What lookup drafts of one text kept of what was expected of them, at most all of it.

    Match lengths say the same of every text, and texts differ: in one that only seems to repeat itself the best of
    many matches disappoint, and where rows are dear nothing but the best is tried. Weights found by replaying answers.
    """

    def __init__(self) -> None:
        self._kept = self._expected = _GRANTED

    @property
    def share(self) -> float:
        """Accepted of expected."""
        return min(1.0, self._kept / self._expected)

    def tell(self, expected: float, accepted: int) -> None:
        """A draft was verified, or its first token seen to be right or wrong."""
        self._expected += expected
        self._kept += accepted

    def begin(self) -> None:
        """The next text; nothing changes where the last one had no drafts."""
        if self._expected == _GRANTED:
            return
        self._kept = _GRANTED * (1.0 - _CARRIED * (1.0 - self.share))
        self._expected = _GRANTED


class Forecaster:
    """Reads drafts by what is learned; remembers how each sequence's drafts have gone lately."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._lately: dict[int, float] = {}
        self._trust: defaultdict[int, _Trust] = defaultdict(_Trust)

    def read(self, draft: Draft) -> Forecast:
        """Estimate a draft's acceptance and survival."""
        learned = self._learned
        if draft.source == LOOKUP:
            chance = learned.lookup.predict(draft.match_length, draft.n, draft.choices)
            share = self._trust[draft.seq].share
            survival = [share * s for s in survivals(chance)]
            return Forecast(draft, [], None, chance, [], survival, 1)
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
            self._learn_trust(forecast, seq, hits)
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

    def _learn_trust(self, forecast: Forecast, seq: SeqOutcome, hits: list[bool]) -> None:
        """From all that was verified; where nothing was, from what the target said of the first token."""
        trust = self._trust[forecast.draft.seq]
        seen = seq.n_verified or len(hits)
        trust.tell(sum(forecast.survival[:seen]) / trust.share, sum(hits[:seen]))

    def mood(self, seqs: Iterable[SeqOutcome]) -> int:
        """The mood that sequences are in together."""
        lately = [self._lately.get(seq.seq, _UNKNOWN) for seq in seqs]
        return mood(sum(lately) / len(lately))

    def begin_answer(self) -> None:
        """All sequences begin anew."""
        self._lately.clear()
        for trust in self._trust.values():
            trust.begin()

    def forget(self, seq: int) -> None:
        """Another text now goes on under this number."""
        self._lately.pop(seq, None)
        self._trust[seq].begin()


def _hits(seq: SeqOutcome, n_drafted: int) -> list[bool]:
    """Whether each drafted token was right, as far as that is known."""
    hits = [True] * seq.n_accepted
    if seq.n_accepted < seq.n_verified:
        hits.append(False)
    elif seq.next_match is not None:
        hits.append(seq.next_match)
    return hits[:n_drafted]
