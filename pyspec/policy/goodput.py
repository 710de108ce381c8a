"""Draft length by goodput: what this machine pays against what this draft is expected to bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspec.policy.base import MAX_DRAFT, LengthPolicy, clean_times, observe_times
from pyspec.policy.choose import allocate, best_length, draft_floors, survivals
from pyspec.policy.drafting import Drafting
from pyspec.policy.forecast import Forecast, Forecaster
from pyspec.policy.gate import Gate
from pyspec.policy.types import Draft, Outcome, Place, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.cost import CostCurve
    from pyspec.policy.learned import Learned

_REFRESH = 128  # rounds between two looks at slowly moving inputs of the floors
_PRICE_MEMORY = 32.0  # rounds the running goodput looks back on


class _Tables(NamedTuple):
    """What changes only with the curve, the depth, the number of sequences or slow averages."""

    step: float
    floors: list[float]
    gain: float
    lookup_min: int


class GoodputPolicy(LengthPolicy):
    """Maximise expected tokens per ms over a round, at the price of a millisecond.

    `drafting` False-able: with `auto_draft` the draft model is switched off by itself where it does
    not pay and probed now and then; likewise `auto_companion`. `companion` says whether there is
    one at all. `max_draft` bounds a model's draft per sequence.
    """

    def __init__(
        self,
        curve: CostCurve | None = None,
        learned: Learned | None = None,
        *,
        companion: bool = False,
        auto_draft: bool = True,
        auto_companion: bool = True,
        max_draft: int = MAX_DRAFT,
    ) -> None:
        super().__init__(curve, learned)
        self._companion = companion
        self._auto_draft, self._auto_companion = auto_draft, auto_companion
        self._max_draft = max_draft
        self._drafting = Drafting()
        self._companion_gate = Gate()
        self._speed = 1.0  # running goodput over that of plain decoding, at least 1
        self._recent = (_PRICE_MEMORY, _PRICE_MEMORY)  # tokens, tokens plain decoding would give
        self._plain_overhead = 0.0
        self._forecaster = Forecaster(self.learned)
        self._mood = 1
        self._n_seq = 1
        self._round = 0
        self._stale_at = 0
        self._by_mood: dict[tuple[int, int, int], _Tables] = {}
        self._tables = _Tables(0.0, [], 0.0, 1)
        self._rows: list[float] = []  # the target's time by rows, at this depth
        self._pending: dict[int, Forecast] = {}
        self._predicted = 0.0
        self._companion_gain = 0.0
        self._asked = False  # for a draft, this round

    # -- before drafting ---------------------------------------------------------------------

    def plan(self, places: Sequence[Place]) -> Plan:
        """See LengthPolicy."""
        self._forget_round()
        self._round += 1
        n_seq = self._n_seq = len(places)
        depth = max(place.depth for place in places)
        idle = Plan([0] * n_seq)
        self._rows = self.curve.target.table(depth)
        if self._round >= self._stale_at:
            # Often at first, when every round teaches something, then now and then.
            self._stale_at = self._round + min(_REFRESH, 1 + self._round // 2)
            self._by_mood.clear()
        key = (n_seq, self._mood, depth // 256)
        tables = self._by_mood.get(key)
        if tables is None:
            tables = self._by_mood[key] = self._refresh(n_seq, depth)
        self._tables = tables
        lengths = [min(self._max_draft, place.room) for place in places]
        if max(lengths) <= 0:
            return idle
        on, probe = self._ask_draft(n_seq) if self._auto_draft else (True, False)
        if not on:
            return idle
        self._asked = True
        self.tally.probes += probe
        return Plan(
            lengths,
            self.learned.calibration.table(self._mood),
            self._tables.floors,
            self._ask_companion(),
            self._tables.lookup_min,
        )

    def _ask_draft(self, n_seq: int) -> tuple[bool, bool]:
        """The gate's answer, told what the model of drafting expects and what catching up costs."""
        missed = self._drafting.missed
        steps = self.curve.draft.table()
        more = steps[min(n_seq * (missed + 1), len(steps) - 1)] - self._tables.step
        behind = self._speed * max(0.0, more) / self._rows[n_seq] if missed else 0.0
        return self._drafting.ask(self._tables.gain - behind)

    def _ask_companion(self) -> bool:
        if not self._companion or not self._auto_companion:
            return self._companion
        return self._companion_gate.ask()[0]

    def _refresh(self, n_seq: int, depth: int) -> _Tables:
        """Recompute what depends on slow inputs: half a millisecond, every 128 rounds and mood."""
        rows = self._rows
        step = self.curve.draft.table(depth)[min(n_seq, self.curve.draft.n_max)]
        # Sequences as equals: each pays its share of rows that all of them grow together.
        most = max(1, min(self._max_draft, (len(rows) - 1) // n_seq - 1))
        verify = [rows[min(n_seq * (g + 1), len(rows) - 1)] / n_seq for g in range(most + 1)]
        price = self._speed / verify[0]
        told = self.learned.calibration
        floors, gain = draft_floors(
            verify, step / n_seq, price, told.nexts(self._mood), told.table(self._mood)
        )
        floors += [1.1] * (self._max_draft - len(floors))
        self._drafting.among(n_seq)
        return _Tables(step, floors, gain, self._lookup_min(verify, price, gain))

    def _lookup_min(self, verify: list[float], price: float, gain: float) -> int:
        """The shortest match whose lookup draft is worth more than a model draft."""
        for match in range(1, 9):
            chain = survivals(self.learned.lookup.predict(match, len(verify) - 1))
            g = best_length(chain, verify, 0.0, price)
            if sum(chain[:g]) - price * (verify[g] - verify[0]) > max(0.0, gain):
                return match
        return 9

    # -- after drafting ----------------------------------------------------------------------

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """See LengthPolicy."""
        rows = self._rows
        price = self._speed * self._n_seq / rows[self._n_seq]
        read = [self._forecaster.read(draft) for draft in drafts]
        lengths = self._lengths([r.survival for r in read], price)
        for r, g in zip(read, lengths, strict=False):
            self._pending[r.draft.seq] = r
            self._predicted += sum(r.survival[:g])
        if any(r.full for r in read):
            self._weigh_companion(read, lengths, price)
        return lengths

    def _lengths(self, chains: list[list[float]], price: float) -> list[int]:
        rows, n_seq = self._rows, self._n_seq
        if n_seq == 1 and len(chains) == 1:
            chain = chains[0][: len(rows) - 2]
            return [best_length(chain, rows[1:], 0.0, price)]
        spare = n_seq - len(chains)  # sequences without a draft still take a row each
        chosen = allocate(chains + [[] for _ in range(max(0, spare))], rows, 0.0, price)
        return chosen[: len(chains)]

    def _weigh_companion(self, read: list[Forecast], lengths: list[int], price: float) -> None:
        """Expected gain of choosing with the companion's view over choosing without it."""
        if not self.learned.companion_helps:
            return
        other = self._lengths([survivals(r.without) for r in read], price)
        rows, n_seq = self._rows, self._n_seq

        def worth(chosen: list[int]) -> float:
            tokens = sum(sum(r.survival[:g]) for r, g in zip(read, chosen, strict=False))
            return tokens - price * rows[n_seq + sum(chosen)]

        self._companion_gain = worth(lengths) - worth(other)

    # -- after verifying ---------------------------------------------------------------------

    def observe(self, outcome: Outcome) -> None:
        """See LengthPolicy."""
        if outcome.seqs:
            clean_times(outcome)
            self._observe(outcome)
        self._forget_round()

    def _forget_round(self) -> None:
        self._pending.clear()
        self._predicted = self._companion_gain = 0.0
        self._asked = False

    def _observe(self, outcome: Outcome) -> None:
        n_seq = self._n_seq = len(outcome.seqs)
        self._rows = self.curve.target.table(outcome.depth)
        self.tally.add(outcome, self._predicted)
        observe_times(self.curve, outcome, n_seq)
        tokens = 0
        for seq in outcome.seqs:
            tokens += seq.n_accepted + 1
            pending = self._pending.get(seq.seq)
            if pending is not None:
                self._forecaster.learn(pending, seq)
        plain = self._time(n_seq)
        plain_tokens = self._own_time(outcome, tokens) * n_seq / plain
        self._reprice(tokens, plain_tokens)
        self._tell_companion(outcome, plain)
        # The companion answers for its own time.
        plain_tokens -= outcome.t_companion * n_seq / plain
        self._tell_drafting(outcome, tokens - plain_tokens)

    def _time(self, rows: int) -> float:
        """The target's time for so many rows, at most what the curve covers."""
        return self._rows[min(rows, len(self._rows) - 1)]

    def _own_time(self, outcome: Outcome, tokens: int) -> float:
        """A round's time without what plain decoding would have spent on Python, too.

        Where prompt tokens of other sequences shared the batch, its time says little and the
        curve's stands in.
        """
        drafting = outcome.t_draft + outcome.t_companion
        own_rows = self._n_seq + sum([seq.n_verified for seq in outcome.seqs])
        if outcome.verify_rows != own_rows or outcome.t_verify == 0.0:
            return drafting + self._time(own_rows)
        time = drafting + outcome.t_verify
        extra = outcome.t_round - time
        if extra <= 0.0:
            return time
        if tokens == self._n_seq and drafting == 0.0:
            self._plain_overhead += 0.1 * (extra - self._plain_overhead)
        return max(time, outcome.t_round - self._plain_overhead)

    def _reprice(self, tokens: float, plain_tokens: float) -> None:
        """Running goodput in units of plain decoding's, the price of a millisecond."""
        keep = 1.0 - 1.0 / _PRICE_MEMORY
        n_seq = self._n_seq
        got, plain = self._recent
        got, plain = got * keep + tokens / n_seq, plain * keep + plain_tokens / n_seq
        self._recent = (got, plain)
        self._speed = max(1.0, got / plain)

    def _tell_companion(self, outcome: Outcome, plain: float) -> None:
        if outcome.companion_rows > 0:
            per_ms = self._speed * self._n_seq / plain
            table = self.curve.companion.table()
            # As with the draft: reading what it missed does not come again if it stays on.
            usual = 1.5 * table[min(outcome.companion_rows, len(table) - 1)]
            gain = self._companion_gain - min(outcome.t_companion, usual) * per_ms
            realised = self._companion_gain - outcome.t_companion * per_ms
            self._companion_gate.tell(gain, realised)
        elif self._asked:
            self._companion_gate.rest()

    def _tell_drafting(self, outcome: Outcome, realised: float) -> None:
        if outcome.draft_steps == 0:
            self._drafting.rest()
            return
        n_seq, one = self._n_seq, self._time(self._n_seq)
        price = self._speed * n_seq / one
        verify = self._time(n_seq + sum([seq.n_verified for seq in outcome.seqs])) - one
        self._mood = self._forecaster.mood(outcome.seqs)
        # What catching up cost will not come again, so it says nothing about going on.
        steps = outcome.t_draft
        if (
            outcome.draft_rows
            > 4 * n_seq + sum([seq.n_verified for seq in outcome.seqs]) + outcome.draft_steps
        ):
            steps = min(steps, outcome.draft_steps * self._tables.step)
        self._drafting.tell(
            gain=(self._predicted - price * (outcome.t_draft + verify)) / n_seq,
            again=(self._predicted - price * (steps + verify)) / n_seq,
            realised=realised / n_seq,
            caught_up=(outcome.t_draft - steps) / one,
        )

    def begin_answer(self) -> None:
        """See LengthPolicy."""
        super().begin_answer()
        self._drafting.begin_answer()
        self._mood = 1
        self._forecaster.begin_answer()

    def begin_sequence(self, seq: int) -> None:
        """See LengthPolicy."""
        self._forecaster.forget(seq)

    def stats(self) -> dict[str, Any]:
        """See LengthPolicy."""
        out = super().stats()
        out["estimator"] = self.learned.draft.chosen
        out["log_loss"] = {
            "bins": round(self.learned.draft.loss_bins, 4),
            "logistic": round(self.learned.draft.loss_logistic, 4),
        }
        out["drafting_gain"] = round(self._drafting.value, 4)
        out["speed_against_plain"] = round(self._recent[0] / self._recent[1], 4)
        if self.learned.scored:
            out["log_loss_without_companion"] = round(self.learned.loss_without, 4)
            out["log_loss_with_companion"] = round(self.learned.loss_with, 4)
            out["companion_information"] = round(self.learned.companion_bits, 4)
        return out
