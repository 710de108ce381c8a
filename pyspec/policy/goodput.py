"""Draft length by goodput: what this machine pays against what this draft is expected to bring."""

from __future__ import annotations

from collections import defaultdict
from math import exp, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspec.policy.simple import LengthPolicy, PlainRounds, clean_times
from pyspec.policy.stopping import (
    Forecast,
    allocate,
    best_length,
    draft_floors,
    forecast,
    learn,
    survivals,
)
from pyspec.policy.types import LONGEST, LOOKUP, Draft, Outcome, Place, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.acceptance import Learned
    from pyspec.policy.cost import CostCurve

_REFRESH = 128  # rounds between two looks at slowly moving inputs of the floors
_PACE_MEMORY = 32.0  # rounds the running mean of tokens looks back on
_USUAL = 256.0  # tokens of an answer, before one was seen
_REST = 8  # rounds for which "no draft pays" is taken for granted: thinking it over again costs 1 % of a token of 7 ms
_MEMORY = 64.0  # rounds the mean gain looks back on
_PRIOR_WEIGHT = 3.0  # observed rounds that an expectation counts for
_TRIAL = 6  # rounds of a trial
_RATE = 0.004  # share of the tokens since the last trial that the next one may lose
_CREDIT = 16.0  # tokens that one may lose at most
_SHARE_LEFT = 0.125  # of the tokens that are left, what one trial may lose
_SHARE_LOOKUP = 0.03  # of a text, what lookup drafts may lose in it
_SAFE = 0.3  # tokens that a lookup draft is expected to lose where it is verified in any text
_SHARE_NEW = 0.03  # the same for a look at a new text, so that it stays at 0.97 of plain at least
_SPREAD = 0.3  # standard deviation of acceptance from text to text, in logits


class _Tables(NamedTuple):
    """What changes only with the curve, the depth, the number of sequences or slow averages.

    step: ms of one drafted token of all sequences; gain: tokens a round and sequence that drafting is expected to bring, and
    by how much more it brings in a text that suits the draft.
    """

    step: float
    floors: list[float]
    gain: float
    more: float
    lookup_min: int


class _Text:
    """A text that goes on: where it began and stands, and the tokens that lookup cost it so far, beyond those it brought."""

    def __init__(self, depth: int) -> None:
        self.began = depth
        self.place = Place(0, 0, depth=depth)
        self.lost = 0.0

    @property
    def emitted(self) -> int:
        """Its tokens."""
        return self.place.depth - self.began

    def bearable(self, usual: float) -> float:
        """Tokens that its next lookup draft may be expected to lose. What lookup has won before is its own to lose.

        Matches say the same of every text, and texts differ: in one that only seems to repeat itself they disappoint one after
        the other, so that what is learned of all texts is no guard.
        """
        return _SHARE_LOOKUP * (self.emitted + min(float(self.place.left), usual)) - self.lost


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
        self._usual = _USUAL  # tokens of a text
        self._texts: dict[int, _Text] = {}
        self._round = self._stale_at = 0
        self._tables: dict[tuple[int, int], _Tables] = {}
        self._table = _Tables(0.0, [1.1], 0.0, 0.0, 1)
        self._rows = self.curve.target.table()
        self._n_seq, self._looked = 1, False
        self._rest = 0  # rounds for which no draft is thought of
        self._pending: dict[int, Forecast] = {}
        self._expected = self._worth = (
            0.0  # tokens that the choice counts on; what the companion's view adds
        )

    # -- the round ---------------------------------------------------------------------------

    def plan(self, places: Sequence[Place]) -> Plan:
        """How long to draft, and the floors at which drafting stops; nothing where no draft pays."""
        self._looked, self._pending = True, {}  # the last round may have ended in an error
        for place in places:
            if place.seq not in self._texts:
                self._texts[place.seq] = _Text(place.depth)
            self._texts[place.seq].place = place
        if self._rest and len(places) == self._n_seq:
            self._rest -= 1
            return Plan([0] * self._n_seq)
        self._catch_up()
        self._look(len(places), max([place.depth for place in places]))
        lengths = [min(LONGEST, place.room) if self._pays(place) else 0 for place in places]
        if not any(lengths):
            self._rest = _REST
            return Plan(lengths)
        table = self._table
        return Plan(
            lengths,
            self.learned.calibration.table,
            table.floors,
            self._score(places),
            table.lookup_min,
        )

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """The lengths that bring the most tokens a millisecond together."""
        read = [forecast(self.learned, draft) for draft in drafts]
        lengths = self._lengths([self._within(r) for r in read])
        self._pending = {r.draft.seq: r for r in read if r.draft.n}
        self._expected = sum([sum(r.survival[:g]) for r, g in zip(read, lengths, strict=True)])
        if any(r.full for r in read) and self.learned.companion_helps:
            other = self._lengths([survivals(r.without) for r in read])
            self._worth = self._value(read, lengths) - self._value(read, other)
        return lengths

    def observe(self, outcome: Outcome) -> None:
        """Learn acceptance, costs, and whether draft and companion gain."""
        if not outcome.seqs:
            return
        self._catch_up()
        clean_times(outcome)
        if not self._looked:  # the loop did not ask
            self._look(len(outcome.seqs), outcome.depth)
        self._looked = False
        self.counts.add(outcome, self._expected)
        self.curve.observe(outcome)
        for seq in outcome.seqs:
            if seq.seq in self._pending:
                learn(self.learned, self._pending[seq.seq], seq)
        self._weigh(outcome)
        self._pending, self._expected, self._worth = {}, 0.0, 0.0

    def learn_plain(self, seen: PlainRounds) -> None:
        """Learn costs, and save up for a trial."""
        super().learn_plain(seen)
        self._go_on(seen.n_seq, float(seen.rounds), seen.rounds)

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
        nexts, step_of_one = told.nexts(), step / n
        floors, gain = draft_floors(verify, step_of_one, price, nexts, told.table)
        suited = [_shifted(a, sqrt(3.0) * _SPREAD) for a in told.table]
        _, better = draft_floors(verify, step_of_one, price, nexts, suited)
        return _Tables(step, floors, gain, better - gain, self._lookup_min(verify, price, gain))

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
        table, rounds = self._table, left / self._pace
        return switch.on(place.seq, table.gain, behind, left, rounds, table.more)

    def _score(self, places: Sequence[Place]) -> bool:
        """Whether the companion looks at this round's drafts."""
        if not self._companion or not self._auto:
            return self._companion
        left = min(float(max([place.left for place in places])), self._usual)
        return self._scoring.on(0, 0.0, 0.0, left, left)

    # -- after drafting ----------------------------------------------------------------------

    def _within(self, read: Forecast) -> list[float]:
        """The part of a lookup draft whose risk its text can bear; all of a model's.

        The risk of g tokens that cost c is E[max(0, c - accepted)] = c - sum of the first c survivals.
        """
        if read.draft.source != LOOKUP or not self._auto:
            return read.survival
        bearable = max(_SAFE, self._texts[read.draft.seq].bearable(self._usual))
        rows, n = self._rows, self._n_seq
        most = len(read.survival)
        while most:
            cost = self._price * (rows[n + most] - rows[n])
            if cost - sum(read.survival[: int(cost)]) <= bearable:
                break
            most -= 1
        return read.survival[:most]

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
        switch = self._go_on(n, 1.0 + sum([seq.n_accepted for seq in outcome.seqs]) / n)
        by_model = [r for r in self._pending.values() if r.draft.source != LOOKUP]
        if by_model:
            verify = (rows[min(own, len(rows) - 1)] - rows[n]) / max(1, own - n)
            drafting = outcome.draft_steps * self._table.step / len(by_model)
            lengths = {seq.seq: seq.n_verified for seq in outcome.seqs}
            for r in by_model:
                g = lengths.get(r.draft.seq, 0)
                switch.used(sum(r.survival[:g]) - price * (verify * g + drafting))
        for seq in outcome.seqs:
            looked = self._pending.get(seq.seq)
            if looked is not None and looked.draft.source == LOOKUP:
                cost = price * (rows[min(n + seq.n_verified, len(rows) - 1)] - rows[n])
                self._texts[seq.seq].lost += cost - seq.n_accepted
        if outcome.companion_rows:
            scoring = self.curve.companion.table(0, outcome.companion_rows)
            self._scoring.used(self._worth - price * scoring[outcome.companion_rows])

    def _go_on(self, n_seq: int, tokens: float, rounds: int = 1) -> UseSwitch:
        """So many tokens a sequence were emitted; the switch of such batches."""
        self._pace += (tokens / rounds - self._pace) * min(1.0, rounds / _PACE_MEMORY)
        switch = self._drafting[n_seq.bit_length()]
        switch.earn(tokens)
        self._scoring.earn(tokens)
        return switch

    # -- between answers ---------------------------------------------------------------------

    def begin_answer(self) -> None:
        """Forget the texts; costs and acceptance stay."""
        super().begin_answer()
        for seq in list(self._texts):
            self._end(seq)
        self._scoring.begin()

    def begin_sequence(self, seq: int) -> None:
        """Forget the text that went on under this number."""
        self._end(seq)

    def _end(self, seq: int) -> None:
        """A text is at its end: how long texts are, and no trial goes on in another one."""
        self._rest = 0
        if seq in self._texts:
            self._usual += 0.2 * (self._texts.pop(seq).emitted + 1 - self._usual)
        for switch in self._drafting.values():
            switch.begin(seq)

    def stats(self) -> dict[str, Any]:
        """The counts of this answer, and what the estimators lost."""
        out = super().stats()
        out["drafting_gain"] = round(self._drafting[1].gain(self._table.gain), 4)
        out["log_loss"] = round(self.learned.loss, 4)
        if self.learned.scored:
            out["log_loss_without_companion"] = round(self.learned.loss_without, 4)
            out["log_loss_with_companion"] = round(self.learned.loss_with, 4)
        return out


def _shifted(p: float, by: float) -> float:
    """A chance that is `by` logits higher."""
    return 1.0 / (1.0 + (1.0 - p) / p * exp(-by))


class UseSwitch:
    """When a side model is used at all: while it gains, and now and then to see whether it would.

    Gains are in tokens a round and sequence against not using it, by the cost curve: what a stall of the machine or catching
    up with the text took is no evidence. Catching up (an unread prompt, rounds without drafts) is a price, weighed before it
    is paid against what the rest of the answer can still bring.
    """

    def __init__(self) -> None:
        self._mean = self._count = 0.0
        self._credit = 0.0
        # rounds left of a text's trial, 0 where it was used without one
        self._trial: dict[int, int] = {}

    def gain(self, expected: float) -> float:
        """Tokens a round to be gained: `expected` on other grounds, and what was seen."""
        return (self._count * self._mean + _PRIOR_WEIGHT * expected) / (self._count + _PRIOR_WEIGHT)

    def on(
        self, seq: int, expected: float, price: float, left: float, rounds: float, more: float = 0.0
    ) -> bool:
        """Whether to use it.

        price: tokens that catching up costs; left: tokens, and rounds, that the text may still have; more: what is gained
        beyond the expected in a text that suits it.
        """
        gain = self.gain(expected)
        if gain * rounds > price:
            self._trial.setdefault(seq, 0)
            return True
        if self._trial.get(seq, 0) > 0:
            self._trial[seq] -= 1
            return True
        loss = price + _TRIAL * max(0.0, -gain)
        afford = min(self._credit, _SHARE_LEFT * left)
        if seq not in self._trial:  # nothing was seen of this text, which may be better than others
            share = _SHARE_NEW if self._count else _SHARE_LEFT
            afford = max(afford, min(promise(gain, gain + more) * rounds, share * left))
        if loss > afford:
            return False
        self._credit = 0.0
        self._trial[seq] = _TRIAL - 1
        return True

    def used(self, gain: float) -> None:
        """A round with it gained so many tokens."""
        self._count = min(self._count + 1.0, _MEMORY)
        self._mean += (gain - self._mean) / self._count

    def earn(self, tokens: float) -> None:
        """So many tokens were emitted; a share of them may be spent on trials."""
        self._credit = min(_CREDIT, self._credit + _RATE * tokens)

    def begin(self, seq: int | None = None) -> None:
        """Another text goes on under this number, or under all of them."""
        if seq is None:
            self._trial.clear()
        else:
            self._trial.pop(seq, None)


def promise(gain: float, better: float) -> float:
    """Expected gain of a text whose own is not known, if it is used only where it is above 0.

    Acceptance differs from text to text by about _SPREAD in logits; Gauss-Hermite with three points takes the mean text with
    2/3, and one that is better by sqrt(3) of it, which gains `better`, with 1/6.
    """
    return max(0.0, gain) * 2.0 / 3.0 + max(0.0, better) / 6.0
