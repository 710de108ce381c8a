"""Draft length by goodput: weighs what a draft costs on this machine against the tokens it is expected to bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

import msgspec

from pyspec.draft.acceptance import Acceptance, Calibration, LookupEstimator
from pyspec.draft.costs import CostCurve, RowTimes
from pyspec.draft.simple import WATCHED, LengthPolicy, PlainRound
from pyspec.draft.stopping import (
    Forecast,
    allocate,
    best_length,
    draft_floors,
    forecast,
    learn,
    survivals,
)
from pyspec.draft.switch import SwitchState, UseSwitch
from pyspec.draft.types import LONGEST, LOOKUP, Draft, Outcome, Place, Plan, SeqOutcome
from pyspec.errors import OptionError

_REFRESH = 128  # lessons that tables outlast: what they are made from changes slowly
_USUAL = 64.0  # tokens of an answer, until one was seen
_LIKELY = 32.0  # expected remaining tokens of an answer, plus as many as it has so far
_SCOUTED = 2  # rounds with a draft before all of a batch draft: until then one sequence pays for learning what it costs
_MARKUP = 0.6  # share of the drafts' gain that a ms of drafting has to earn on top of plain decoding's price


class _Tables(NamedTuple):
    """Values that change only with the curve, the depth, the number of sequences or slow averages."""

    step: float  # ms of one drafted token for all sequences
    markup: float  # how many times plain decoding's price a ms of drafting has to earn
    floors: list[float]  # survivals at which drafting stops
    gain: float  # tokens per round and sequence that drafting is expected to bring


def _size(n_seq: int) -> int:
    """Batches that share what drafts gained: of 1, 2, 3 to 4, 5 to 8, ... so that one of a power of two may shrink."""
    return (n_seq - 1).bit_length()


class Experience(msgspec.Struct):
    """What answers under one rule, drawn in one way, have taught a `GoodputPolicy`."""

    calibration: Calibration
    lookup: LookupEstimator
    switches: dict[int, SwitchState]  # by `_size` of the batch
    usual: float  # tokens of an answer

    def __post_init__(self) -> None:
        if not (0.0 < self.usual < 1e9 and len(self.switches) <= 64):
            raise OptionError("what a policy was taught contradicts itself")

    def aged(self, weight: float) -> Experience:
        """The same, counting for `weight` of its observations."""
        calibration = self.calibration.aged(weight)
        switches = {size: seen.aged(weight) for size, seen in self.switches.items()}
        return Experience(calibration, self.lookup, switches, self.usual)

    def mixed(self, other: Experience) -> Experience:
        """Half of this and half of another process's: both began with the same, which must not count twice."""
        switches = {
            size: seen.mixed(other.switches[size]) if size in other.switches else seen
            for size, seen in self.switches.items()
        }
        calibration = self.calibration.mixed(other.calibration)
        usual = 0.5 * (self.usual + other.usual)
        return Experience(calibration, self.lookup, {**other.switches, **switches}, usual)


class GoodputPolicy(LengthPolicy):
    """Maximises a round's tokens beyond those that plain decoding would have made in the same time.

    Args:
        curve: what decodes cost; None assumes a prior.
        learned: what is known of acceptance.
        companion: whether there is one.
        auto: use draft and companion only where they pay; False always uses them.
    """

    def __init__(
        self,
        curve: CostCurve | None = None,
        learned: Acceptance | None = None,
        *,
        companion: bool = False,
        auto: bool = True,
    ) -> None:
        super().__init__(curve, learned)
        self._companion, self._auto = companion, auto
        self._drafting = defaultdict[int, UseSwitch](UseSwitch)  # by `_size` of the batch
        self._scoring = UseSwitch()
        self._usual = _USUAL  # tokens per answer
        self._texts: dict[int, tuple[int, int]] = {}  # tokens when each sequence began, and now
        self._longest = LONGEST  # set from places
        # the curve at this round's depth and number of sequences
        self._n_seq = 1
        self._rows = self.curve.target.table()
        self._price = 1.0 / self._rows[1]
        self._table = _Tables(0.0, 1.0, [1.1], 0.0)
        self._tables: dict[tuple[int, int], _Tables] = {}
        # how often something was learned, by earlier processes too, and how often it will have been when tables are made anew
        self._lessons = self._stale_at = 0
        self._forget_round()

    def _forget_round(self) -> None:
        self._planned = False
        self._pending: dict[int, Forecast] = {}
        self._view = 0.0  # what the companion adds

    def plan(self, places: Sequence[Place]) -> Plan:
        """Plan how long to draft and the survivals at which drafting stops; length 0 where no draft pays."""
        self._forget_round()  # the last round may have ended in an error
        self._planned = True
        self._follow(places)
        self._read_costs(len(places), max([place.depth for place in places]))
        drafting = self._scouts([place for place in places if self._pays(place)])
        if not drafting:
            return Plan([0] * self._n_seq)
        seqs = {place.seq for place in drafting}
        lengths = [min(self._longest, p.room) if p.seq in seqs else 0 for p in places]
        learned, table = self.learned_of([*seqs]), self._table
        return Plan(lengths, learned.calibration.table, table.floors, self._score(places))

    def _follow(self, places: Sequence[Place]) -> None:
        """Record where each sequence stands and what its draft model can do."""
        for place in places:
            began, _ = self._texts.get(place.seq, (place.depth, 0))
            self._texts[place.seq] = began, place.depth
            self._longest = min(LONGEST, place.longest or self._longest)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Choose the lengths that together bring the most tokens beyond their cost."""
        read = [forecast(self.learned_of([draft.seq]), draft) for draft in drafts]
        lengths = self._lengths([r.survival for r in read])
        self._pending = {r.draft.seq: r for r in read if r.draft.n}
        if any(r.full for r in read):
            other = self._lengths([survivals(r.without) for r in read])
            self._view = self._value(read, lengths) - self._value(read, other)
        return lengths

    def observe(self, outcome: Outcome) -> None:
        """Learn acceptance, costs, and whether draft and companion gain."""
        if not outcome.seqs:
            return
        if not self._planned:  # the loop did not call `plan`
            self._read_costs(len(outcome.seqs), outcome.depth)
        super().observe(outcome)
        self._learn_acceptance(outcome.seqs)
        self._learn_gains(outcome)
        self._forget_round()
        self._count_lesson()

    def watch(self, seen: PlainRound, seqs: Sequence[SeqOutcome] = ()) -> None:
        """Take note of a round in which nothing was verified, and add to the credit of trials."""
        super().watch(seen)
        self._earn(seen.n_seq, 1.0)
        if self._pending:
            self._learn_acceptance(seqs)
            self._forget_round()

    def _learn_acceptance(self, seqs: Sequence[SeqOutcome]) -> None:
        for seq in seqs:
            if seq.seq in self._pending:
                learn(self.learned_of([seq.seq]), self._pending[seq.seq], seq)

    def renew_costs(self) -> None:
        """Treat learned times as guesses, and rebuild the tables in the next round."""
        super().renew_costs()
        self._tables.clear()

    def learn_plain(self, seen: Sequence[PlainRound]) -> None:
        """Learn from the times of these rounds."""
        super().learn_plain(seen)
        self._count_lesson()

    def _count_lesson(self) -> None:
        """Note that something was learned. Tables, which take half a millisecond each, are made anew often at first."""
        self._lessons += 1
        if self._lessons >= self._stale_at:
            self._tables.clear()
            self._keep_tables()

    def _keep_tables(self) -> None:
        self._stale_at = self._lessons + min(_REFRESH, 1 + self._lessons // 2)

    def _read_costs(self, n_seq: int, depth: int) -> None:
        """Read the curve at this depth, and take the tables for this number of sequences."""
        self._n_seq = n_seq
        self._rows = self.curve.target.table(depth, n_seq * (LONGEST + 1))
        self._price = n_seq / self._rows[n_seq]
        key = (n_seq, depth // 256)
        if key not in self._tables:
            self._tables[key] = self._make_tables()
        self._table = self._tables[key]

    def _make_tables(self) -> _Tables:
        n, price, calibration = self._n_seq, self._price, self.learned.calibration
        step = self.curve.draft.table(0, n)[n]
        # Sequences count as equal: all drafts grow together, and each sequence pays its share of the rows.
        verify = [self._rows[n * (g + 1)] / n for g in range(LONGEST + 1)]
        drafted, nexts = verify[: self._longest + 1], calibration.nexts()

        def drafting(price: float) -> tuple[list[float], float]:
            """Floors at this price, and the tokens per round that drafting to these floors gains."""
            return draft_floors(drafted, step / n, price, nexts, calibration.table)

        floors, gain = drafting(price)
        markup = self._markup(gain)
        if markup > 1.0:
            floors, _ = drafting(markup * price)
        return _Tables(step, markup, floors, gain)

    def _markup(self, gain: float) -> float:
        """How many times plain decoding's price a ms of drafting has to earn, where drafts gain this many tokens per round.

        Where drafts gain, a ms of drafting delays the next such round, so its price lies between plain decoding's and goodput's.
        Charging the whole difference loses where sequences differ; none loses 2 to 4 % on recorded drafts that pay.
        """
        return 1.0 / (1.0 - _MARKUP * self._switch.share(gain))

    @property
    def _switch(self) -> UseSwitch:
        return self._drafting[_size(self._n_seq)]

    def _pays(self, place: Place) -> bool:
        """Whether running the draft model pays: its gain over the tokens left, against the cost of catching up."""
        if place.room <= 0 or not place.longest:
            return False
        if not self._auto:
            return True
        cost = partial(self._catching_up, self.curve.draft, place.lag)
        return self._switch.on(place.seq, self._table.gain, cost, self._left(place))

    def _scouts(self, drafting: list[Place]) -> list[Place]:
        """All of these, or where too few rounds drafted with such a batch the one with the least to read."""
        if not self._auto or len(drafting) < 2 or self._switch.seen.count >= _SCOUTED:
            return drafting
        return [min(drafting, key=lambda place: place.lag)]

    def _catching_up(self, side: RowTimes, unread: int) -> float:
        """Tokens that it costs a side model to read this many tokens before its first step."""
        return self._price * (side.time(unread + 1) - side.time(1))

    def _left(self, place: Place) -> float:
        """Tokens that a sequence is expected to have left; all that may still come, if those are few."""
        emitted = self._emitted(place.seq)
        if emitted + place.left <= _USUAL:
            return float(place.left)
        return min(float(place.left), self._usual, _LIKELY + emitted)

    def _emitted(self, seq: int) -> int:
        """Tokens that a sequence got so far."""
        began, depth = self._texts[seq]
        return depth - began

    def _score(self, places: Sequence[Place]) -> bool:
        """Whether the companion scores this round's drafts."""
        if not self._companion or not self._auto:
            return self._companion
        left = min(float(max([place.left for place in places])), self._usual)
        unread = max([place.companion_lag for place in places])
        cost = partial(self._catching_up, self.curve.companion, unread)
        return self._scoring.on(0, 0.0, cost, left)

    def _lengths(self, chains: list[list[float]]) -> list[int]:
        price = self._table.markup * self._price
        if self._n_seq == 1 and len(chains) == 1:
            return [best_length(chains[0][:LONGEST], self._rows[1:], price)]
        spare = self._n_seq - len(chains)  # sequences without a draft still take a row each
        return allocate(chains + [[]] * spare, self._rows, price)[: len(chains)]

    def _value(self, read: list[Forecast], lengths: list[int]) -> float:
        """Tokens that verifying this many of each draft is expected to bring, less the cost of all rows."""
        tokens = sum(sum(r.survival[:g]) for r, g in zip(read, lengths, strict=True))
        return tokens - self._price * self._rows[self._n_seq + sum(lengths)]

    def _learn_gains(self, outcome: Outcome) -> None:
        """Tell switches and sequences what drafts and companion gained in this round, using the curve's times."""
        n = self._n_seq
        switch = self._earn(n, 1.0 + sum([seq.n_accepted for seq in outcome.seqs]) / n)
        row, drafting = self._row_cost(outcome), self._draft_cost(outcome)
        for seq in outcome.seqs:
            read = self._pending.get(seq.seq)
            if read is not None and read.draft.source != LOOKUP:
                gain = read.brought(seq) - row * seq.n_verified - drafting
                switch.used(gain, 1.0 + seq.n_accepted)
        scored = outcome.companion_rows - outcome.companion_read
        if scored > 0:
            self._scoring.used(self._view - self._price * self.curve.companion.time(scored))

    def _row_cost(self, outcome: Outcome) -> float:
        """Tokens that each verified row of the round cost."""
        n, rows, own = self._n_seq, self._rows, outcome.own_rows
        verify = (rows[min(own, len(rows) - 1)] - rows[n]) / max(1, own - n)
        return self._price * verify

    def _draft_cost(self, outcome: Outcome) -> float:
        """Tokens that drafting cost each sequence for which a model drafted."""
        by_model = sum([r.draft.source != LOOKUP for r in self._pending.values()])
        return self._price * outcome.draft_steps * self._table.step / max(1, by_model)

    def _earn(self, n_seq: int, tokens: float) -> UseSwitch:
        """Credit this many tokens per sequence to trials; returns the switch for batches of this size."""
        switch = self._drafting[_size(n_seq)]
        switch.earn(tokens)
        if self._companion:
            self._scoring.earn(tokens)
        return switch

    def begin_sequence(self, seq: int) -> None:
        """Learn from the length of the sequence that ends under this number, and end its trial."""
        super().begin_sequence(seq)
        if seq in self._texts:
            self._usual = self._usual_after([seq])
            del self._texts[seq]
        for switch in (*self._drafting.values(), self._scoring):
            switch.begin(seq)

    def _usual_after(self, ended: Iterable[int]) -> float:
        """Tokens of an answer to expect, once these sequences have ended."""
        usual = self._usual
        for seq in ended:
            usual += 0.2 * (self._emitted(seq) + 1 - usual)
        return usual

    def move_sequence(self, seq: int, to: int) -> None:
        """Keep what is known of a sequence under its new number."""
        self.begin_sequence(to)
        if seq in self._texts:
            self._texts[to] = self._texts.pop(seq)
        for switch in self._drafting.values():
            switch.move(seq, to)

    def experience(self) -> Experience:
        """What the answers so far have taught, for a later process."""
        self.catch_up()
        switches = {size: copy(switch.seen) for size, switch in self._drafting.items()}
        # in a process that answers once no other text begins
        usual = self._usual_after(self._texts)
        return Experience(self.learned.calibration, self.learned.lookup, switches, usual)

    def begin_with(self, seen: Experience) -> None:
        """Start from what earlier processes were taught; acceptance comes with `learned`."""
        for size, state in seen.switches.items():
            self._drafting[size].seen = copy(state)
            self._lessons += round(state.count)
        self._usual = seen.usual
        self._lessons += round(seen.usual / WATCHED)  # of one answer at least
        self._keep_tables()
