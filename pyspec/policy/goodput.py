"""Draft length by goodput: what this machine pays against what this draft is expected to bring."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspec.policy.forecast import Forecast, Forecaster
from pyspec.policy.simple import LengthPolicy, clean_times
from pyspec.policy.stopping import allocate, best_length, draft_floors, survivals
from pyspec.policy.switch import UseSwitch
from pyspec.policy.types import LONGEST, LOOKUP, Draft, Outcome, Place, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.acceptance import Learned
    from pyspec.policy.cost import CostCurve

_REFRESH = 128  # rounds between two looks at slowly moving inputs of the floors
_PACE_MEMORY = 32.0  # rounds the running mean of tokens looks back on
_USUAL = 256.0  # tokens of an answer, before one was seen


class _Tables(NamedTuple):
    """What changes only with the curve, the depth, the number of sequences or slow averages.

    step: ms of one drafted token of all sequences; gain: tokens a round and sequence that drafting is expected to bring.
    """

    step: float
    floors: list[float]
    gain: float
    lookup_min: int


class GoodputPolicy(LengthPolicy):
    """Maximise expected tokens over those that plain decoding would have made in the same time.

    `companion` says whether there is one. With `auto` draft and companion are used where they pay, else always.
    """

    def __init__(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        *,
        companion: bool = False,
        auto: bool = True,
    ) -> None:
        super().__init__(curve, learned)
        self._companion, self._auto = companion, auto
        self._drafting: defaultdict[int, UseSwitch] = defaultdict(UseSwitch)  # by size of the batch
        self._scoring = UseSwitch()
        self._pace = 1.0  # tokens a round and sequence, lately
        self._forecaster = Forecaster(self.learned)
        self._usual = _USUAL  # tokens of a text, and those of each that goes on
        self._emitted: defaultdict[int, int] = defaultdict(int)
        self._round = self._stale_at = 0
        self._tables: dict[tuple[int, int], _Tables] = {}
        self._table = _Tables(0.0, [1.1], 0.0, 1)
        self._rows = self.curve.target.table()
        self._n_seq, self._looked = 1, False
        self._pending: dict[int, Forecast] = {}
        self._expected = self._worth = (
            0.0  # tokens that the choice counts on; what the companion's view adds
        )

    # -- the round ---------------------------------------------------------------------------

    def plan(self, places: Sequence[Place]) -> Plan:
        """See Policy."""
        self._look(len(places), max([place.depth for place in places]))
        self._looked = True
        lengths = [min(LONGEST, place.room) if self._pays(place) else 0 for place in places]
        if not any(lengths):
            return Plan(lengths, lookup_min=1)
        table = self._table
        return Plan(
            lengths,
            self.learned.calibration.table,
            table.floors,
            self._score(places),
            table.lookup_min,
        )

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """See Policy."""
        read = [self._forecaster.read(draft) for draft in drafts]
        lengths = self._lengths([r.survival for r in read])
        self._pending = {r.draft.seq: r for r in read if r.draft.n}
        self._expected = sum([sum(r.survival[:g]) for r, g in zip(read, lengths, strict=True)])
        if any(r.full for r in read) and self.learned.companion_helps:
            other = self._lengths([survivals(r.without) for r in read])
            self._worth = self._value(read, lengths) - self._value(read, other)
        return lengths

    def observe(self, outcome: Outcome) -> None:
        """See Policy."""
        if not outcome.seqs:
            return
        clean_times(outcome)
        if not self._looked:  # the loop did not ask
            self._look(len(outcome.seqs), outcome.depth)
        self._looked = False
        self.counts.add(outcome, self._expected)
        self.curve.observe(outcome)
        for seq in outcome.seqs:
            self._emitted[seq.seq] += seq.n_accepted + 1
            if seq.seq in self._pending:
                self._forecaster.learn(self._pending[seq.seq], seq)
        self._weigh(outcome)
        self._pending, self._expected, self._worth = {}, 0.0, 0.0

    # -- before drafting ---------------------------------------------------------------------

    @property
    def _price(self) -> float:
        """Tokens a millisecond is worth: what plain decoding makes of it."""
        return self._n_seq / self._rows[self._n_seq]

    def _look(self, n_seq: int, depth: int) -> None:
        """Take up the curve at this depth, and the tables for so many sequences."""
        self._n_seq = n_seq
        self._rows = self.curve.target.table(depth, n_seq * (LONGEST + 1))
        self._round += 1
        if self._round >= self._stale_at:
            # Often at first, when every round teaches something, then now and then.
            self._stale_at = self._round + min(_REFRESH, 1 + self._round // 2)
            self._tables.clear()
        key = (n_seq, depth // 256)
        if key not in self._tables:
            self._tables[key] = self._refresh()
        self._table = self._tables[key]

    def _refresh(self) -> _Tables:
        """Recompute what depends on slow inputs."""
        n, rows, price = self._n_seq, self._rows, self._price
        step = self.curve.draft.table(0, n)[n]
        # Sequences as equals: each pays its share of rows that all of them grow together.
        verify = [rows[n * (g + 1)] / n for g in range(LONGEST + 1)]
        told = self.learned.calibration
        floors, gain = draft_floors(verify, step / n, price, told.nexts(), told.table)
        return _Tables(step, floors, gain, self._lookup_min(verify, price, gain))

    def _lookup_min(self, verify: list[float], price: float, gain: float) -> int:
        """The shortest match whose lookup draft is worth more than a model draft."""
        for match in range(1, 9):
            chain = survivals(self.learned.lookup.predict(match, LONGEST))
            g = best_length(chain, verify, price)
            if sum(chain[:g]) - price * (verify[g] - verify[0]) > max(0.0, gain):
                return match
        return 9

    def _pays(self, place: Place) -> bool:
        """Whether the draft model is worth running: its gain over what is left, against catching up."""
        if place.room <= 0:
            return False
        if not self._auto:
            return True
        draft = self.curve.draft
        left = min(float(place.left), self._usual)
        behind = self._price * (draft.time(place.lag + 1) - draft.time(1))
        switch = self._drafting[self._n_seq.bit_length()]
        return switch.on(place.seq, self._table.gain, behind, left, left / self._pace)

    def _score(self, places: Sequence[Place]) -> bool:
        """Whether the companion looks at this round's drafts."""
        if not self._companion or not self._auto:
            return self._companion
        left = min(float(max([place.left for place in places])), self._usual)
        return self._scoring.on(0, 0.0, 0.0, left, left)

    # -- after drafting ----------------------------------------------------------------------

    def _lengths(self, chains: list[list[float]]) -> list[int]:
        if self._n_seq == 1 and len(chains) == 1:
            return [best_length(chains[0][:LONGEST], self._rows[1:], self._price)]
        spare = self._n_seq - len(chains)  # sequences without a draft still take a row each
        return allocate(chains + [[]] * spare, self._rows, self._price)[: len(chains)]

    def _value(self, read: list[Forecast], lengths: list[int]) -> float:
        tokens = sum(sum(r.survival[:g]) for r, g in zip(read, lengths, strict=True))
        return tokens - self._price * self._rows[self._n_seq + sum(lengths)]

    # -- after verifying ---------------------------------------------------------------------

    def _weigh(self, outcome: Outcome) -> None:
        """Whether draft and companion pay: what the round gained, by the curve."""
        n, rows, price = self._n_seq, self._rows, self._price
        own = outcome.own_rows
        emitted = n + sum([seq.n_accepted for seq in outcome.seqs])
        self._pace += (emitted / n - self._pace) / _PACE_MEMORY
        switch = self._drafting[n.bit_length()]
        switch.earn(emitted / n)
        by_model = [r for r in self._pending.values() if r.draft.source != LOOKUP]
        if by_model:
            verify = (rows[min(own, len(rows) - 1)] - rows[n]) / max(1, own - n)
            drafting = outcome.draft_steps * self._table.step / len(by_model)
            lengths = {seq.seq: seq.n_verified for seq in outcome.seqs}
            for r in by_model:
                g = lengths.get(r.draft.seq, 0)
                switch.used(sum(r.survival[:g]) - price * (verify * g + drafting))
        self._scoring.earn(emitted / n)
        if outcome.companion_rows:
            scoring = self.curve.companion.table(0, outcome.companion_rows)
            self._scoring.used(self._worth - price * scoring[outcome.companion_rows])

    # -- between answers ---------------------------------------------------------------------

    def begin_answer(self) -> None:
        """See Policy."""
        super().begin_answer()
        for seq in list(self._emitted):
            self._end(seq)
        self._forecaster.begin_answer()
        self._scoring.begin()

    def begin_sequence(self, seq: int) -> None:
        """See Policy."""
        self._end(seq)
        self._forecaster.begin_sequence(seq)

    def _end(self, seq: int) -> None:
        """A text is at its end: how long texts are, and no trial goes on in another one."""
        if seq in self._emitted:
            self._usual += 0.2 * (self._emitted.pop(seq) - self._usual)
        for switch in self._drafting.values():
            switch.begin(seq)

    def stats(self) -> dict[str, Any]:
        """See Policy."""
        out = super().stats()
        out["drafting_gain"] = round(self._drafting[1].gain(self._table.gain), 4)
        out["log_loss"] = round(self.learned.loss, 4)
        if self.learned.scored:
            out["log_loss_without_companion"] = round(self.learned.loss_without, 4)
            out["log_loss_with_companion"] = round(self.learned.loss_with, 4)
        return out
