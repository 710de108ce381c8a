"""The policies that the replay compares. Each plays one round for the sequences it is shown."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspec.policy.choose import allocate, survivals
from pyspec.policy.estimator import AdaptiveBins
from pyspec.policy.features import read_companion, read_draft, table_bin
from pyspec.policy.types import Draft, Outcome, Place, Plan, SeqOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.measure.rounds import Answer, Chain
    from pyspec.policy.base import LengthPolicy


class Costs(NamedTuple):
    """Times in ms by rows, index 0 is no rows: target, draft (one step), companion."""

    target: list[float]
    draft: list[float]
    companion: list[float]


class Seat(Protocol):
    """One sequence of the batch, where it stands."""

    answer: Answer
    t: int
    draft_behind: int  # committed tokens the draft's KV lacks besides the last one
    companion_behind: int


class Round(NamedTuple):
    """What a policy did: accepted tokens of each seat, and the time it took in ms."""

    accepted: list[int]
    ms: float


class Player(Protocol):
    """A policy under replay."""

    name: str

    def play(self, seats: Sequence[Seat]) -> Round:
        """One round."""


def room(seat: Seat) -> int:
    """Draft tokens that still make sense: the round's last token is the target's own."""
    return max(0, seat.answer.length - seat.t - 1)


class Spent:
    """Times of one round, drafting in lock-step."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.draft = self.companion = self.verify = 0.0
        self.steps = self.companion_rows = self.verify_rows = 0
        self.draft_rows = 0

    def draft_run(self, seats: Sequence[Seat], lengths: Sequence[int]) -> None:
        """Steps of drafting lengths[i] tokens; the first one also decodes what was missed."""
        self.steps = max(lengths, default=0)
        for i in range(self.steps):
            rows = sum(n > i for n in lengths)
            if i == 0:
                rows += sum(s.draft_behind for s, n in zip(seats, lengths, strict=False) if n)
            self.draft += _at(self._costs.draft, rows)
            self.draft_rows += rows
        for seat, n in zip(seats, lengths, strict=False):
            seat.draft_behind = 0 if n else seat.draft_behind

    def companion_run(self, seats: Sequence[Seat], lengths: Sequence[int]) -> None:
        """One batch over all drafted tokens and what was missed."""
        rows = sum(n + s.companion_behind for s, n in zip(seats, lengths, strict=False) if n)
        self.companion_rows = rows
        self.companion = _at(self._costs.companion, rows) if rows else 0.0
        for seat, n in zip(seats, lengths, strict=False):
            seat.companion_behind = 0 if n else seat.companion_behind

    def verify_run(self, n_seq: int, lengths: Sequence[int]) -> None:
        """The target's batch."""
        self.verify_rows = n_seq + sum(lengths)
        self.verify = _at(self._costs.target, self.verify_rows)

    @property
    def ms(self) -> float:
        """All of it."""
        return self.draft + self.companion + self.verify


def _at(table: list[float], rows: int) -> float:
    if rows < len(table):
        return table[rows]
    return table[-1] * rows / (len(table) - 1)


def commit(seat: Seat, drafted: int, accepted: int, companion: bool) -> None:
    """Move KV lags: a model that saw the draft lacks only its last token, if that was accepted."""
    full = int(drafted > 0 and accepted >= drafted)
    seat.draft_behind = full if drafted else seat.draft_behind + accepted + 1
    seat.companion_behind = full if companion and drafted else seat.companion_behind + accepted + 1


def chain_at(seat: Seat) -> Chain | None:
    """The model's chain where the seat stands."""
    return seat.answer.model.get(seat.t)


class Simple:
    """Plain decoding (k = 0), a fixed length, or a confidence threshold on the draft's own p."""

    def __init__(self, costs: Costs, k: int, p_min: float = 0.0) -> None:
        self._costs, self._k, self._p_min = costs, k, p_min
        self.name = f"confidence {p_min:g}" if p_min else (f"fixed {k}" if k else "plain")

    def play(self, seats: Sequence[Seat]) -> Round:
        """See Player."""
        spent = Spent(self._costs)
        drafted, used = [], []
        for seat in seats:
            chain = chain_at(seat)
            n = min(self._k, room(seat), len(chain.ok) if chain else 0)
            low = [i for i in range(n) if chain and chain.p[i] < self._p_min]
            drafted.append(min(n, low[0] + 1) if low else n)
            used.append(low[0] if low else n)
        spent.draft_run(seats, drafted)
        spent.verify_run(len(seats), used)
        return _finish(seats, drafted, used, spent, companion=False)


def _finish(
    seats: Sequence[Seat],
    drafted: Sequence[int],
    used: Sequence[int],
    spent: Spent,
    companion: bool,
) -> Round:
    accepted = []
    for seat, n, g in zip(seats, drafted, used, strict=False):
        chain = chain_at(seat)
        m = min(g, chain.matched) if chain else 0
        commit(seat, n, m, companion)
        accepted.append(m)
    return Round(accepted, spent.ms)


class Published:
    """Speculative verification as published.

    Draft fixed; the companion always scores it; acceptance from adaptive (S, A) bins filled
    beforehand; goodput E / L without the guaranteed token, by adding the best token while it
    rises, so at least one token is verified; draft and companion time are not in the objective
    but are spent, one after the other as on one device.
    """

    def __init__(self, costs: Costs, bins: AdaptiveBins, k: int = 5) -> None:
        self._costs, self._bins, self._k = costs, bins, k
        self.name = f"SV as published ({k})"

    def play(self, seats: Sequence[Seat]) -> Round:
        """See Player."""
        spent = Spent(self._costs)
        drafted, chances = [], []
        for seat in seats:
            chain = chain_at(seat)
            n = min(self._k, room(seat), len(chain.ok) if chain else 0)
            drafted.append(n)
            chances.append(self._survival(chain, n) if chain and n else [])
        spent.draft_run(seats, drafted)
        spent.companion_run(seats, drafted)
        used = self._climb(chances)
        spent.verify_run(len(seats), used)
        return _finish(seats, drafted, used, spent, companion=True)

    def _survival(self, chain: Chain, n: int) -> list[float]:
        draft = chain.draft(n)
        full = read_companion(draft, read_draft(draft)) or []
        return survivals([self._bins.predict(f) for f in full])

    def _climb(self, chains: Sequence[Sequence[float]]) -> list[int]:
        rows = self._costs.target
        order = sorted((-s, i, k) for i, chain in enumerate(chains) for k, s in enumerate(chain))
        used, expected, top = [0] * len(chains), 0.0, -1.0
        for taken, (minus, i, _) in enumerate(order, 1):
            expected -= minus
            goodput = expected / _at(rows, len(chains) + taken)
            if goodput <= top:
                break
            top = goodput
            used[i] += 1
        return used


def profile_bins(answers: Sequence[Answer], k: int = 5) -> AdaptiveBins:
    """The published offline profile: bins filled from fixed drafts over some answers."""
    bins = AdaptiveBins(memory=1 << 20)
    for answer in answers:
        for chain in answer.model.values():
            draft = chain.draft(min(k, len(chain.ok)))
            for i, f in enumerate(read_companion(draft, read_draft(draft)) or []):
                bins.update(f, bool(chain.ok[i]))
                if not chain.ok[i]:
                    break
    return bins


class Ours:
    """A real policy object of pyspec, timed with some noise, as it would be in an engine."""

    def __init__(
        self, name: str, costs: Costs, policy: LengthPolicy, lookup: bool = False, seed: int = 0
    ) -> None:
        self.name, self.policy = name, policy
        self._costs, self._lookup = costs, lookup
        self._rng = random.Random(seed)  # noqa: S311 - reproducible, not secret

    def play(self, seats: Sequence[Seat]) -> Round:
        """See Player."""
        spent = Spent(self._costs)
        if all(seat.t == 0 for seat in seats):
            self.policy.begin_answer()
        for i, seat in enumerate(seats):
            if seat.t == 0:
                self.policy.begin_sequence(i)
        plan = self.policy.plan(
            [Place(i, room(seat), seat.draft_behind) for i, seat in enumerate(seats)]
        )
        picks = [self._pick(i, seat, plan) for i, seat in enumerate(seats)]
        model = [
            d.n if c is chain_at(s) and c else 0 for (c, d), s in zip(picks, seats, strict=False)
        ]
        spent.draft_run(seats, model)
        if plan.use_companion:
            spent.companion_run(seats, model)
        drafts = [d for c, d in picks if c is not None]
        given = iter(self.policy.choose(drafts) if drafts else [])
        used = [next(given) if c is not None else 0 for c, _ in picks]
        spent.verify_run(len(seats), used)
        outcomes = [
            self._result(i, c, d, g) for i, ((c, d), g) in enumerate(zip(picks, used, strict=False))
        ]
        for seat, n, r in zip(seats, model, outcomes, strict=False):
            commit(seat, n, r.n_accepted, plan.use_companion)
        self._observe(spent, outcomes)
        return Round([r.n_accepted for r in outcomes], spent.ms)

    def _pick(self, i: int, seat: Seat, plan: Plan) -> tuple[Chain | None, Draft]:
        found = seat.answer.lookup.get(seat.t) if self._lookup else None
        least = plan.lookup_min if plan.lengths[i] else 1
        if found and room(seat) and found.match_length >= least:
            return found, found.draft(min(len(found.ok), room(seat)), i)
        chain = chain_at(seat)
        if chain is None or plan.lengths[i] == 0 or room(seat) == 0:
            return None, Draft(i, 0)
        n = self._drafted(chain, min(plan.lengths[i], room(seat), len(chain.ok)), plan)
        return chain, chain.draft(n, i, plan.use_companion)

    @staticmethod
    def _drafted(chain: Chain, most: int, plan: Plan) -> int:
        """How far the loop drafts: what the C side does with the table and the floors."""
        if plan.table is None:
            return most
        survival = 1.0
        for i in range(most):
            survival *= plan.table[table_bin(chain.p[i])]
            if survival < plan.floors[min(i, len(plan.floors) - 1)]:
                return i + 1
        return most

    @staticmethod
    def _result(i: int, chain: Chain | None, draft: Draft, g: int) -> SeqOutcome:
        if chain is None:
            return SeqOutcome(i, 0, 0)
        m = min(g, chain.matched)
        more = bool(chain.ok[g]) if m == g and g < draft.n else None
        return SeqOutcome(i, g, m, next_match=more)

    def _observe(self, spent: Spent, outcomes: list[SeqOutcome]) -> None:
        def noisy(ms: float) -> float:
            return (
                ms
                * self._rng.lognormvariate(0.0, 0.03)
                * (3.0 if self._rng.random() < 0.003 else 1.0)
            )

        self.policy.observe(
            Outcome(
                outcomes,
                noisy(spent.verify),
                spent.verify_rows,
                noisy(spent.draft) if spent.steps else 0.0,
                spent.steps,
                noisy(spent.companion) if spent.companion_rows else 0.0,
                spent.companion_rows,
                0.0,
                spent.draft_rows,
            )
        )


class Oracle:
    """Knows the future, model drafts and (if asked) lookup.

    One sequence: the exact minimum of the whole answer's time, by dynamic programming. Several:
    the best round at a time, which is a little less than the most.
    """

    def __init__(self, costs: Costs, lookup: bool = False) -> None:
        self._costs, self._lookup = costs, lookup
        self.name = "oracle with lookup" if lookup else "oracle"
        self._best: dict[int, list[tuple[float, int, float]]] = {}

    def play(self, seats: Sequence[Seat]) -> Round:
        """See Player."""
        if len(seats) == 1:
            seat = seats[0]
            plan = self._best.setdefault(id(seat.answer), [])
            if not plan:
                plan.extend(self._solve(seat.answer))
            _, g, ms = plan[seat.t]
            return Round([g], ms)
        return self._together(seats)

    def _options(self, answer: Answer, t: int) -> list[tuple[int, float]]:
        """(accepted, draft ms per token) for each source at t."""
        most = answer.length - t - 1
        model, found = answer.model.get(t), answer.lookup.get(t)
        out = [(min(most, model.matched), self._costs.draft[1])] if model else []
        if self._lookup and found:
            out.append((min(most, found.matched), 0.0))
        return out

    def _solve(self, answer: Answer) -> list[tuple[float, int, float]]:
        target = self._costs.target
        best: list[tuple[float, int, float]] = [(0.0, 0, 0.0)] * (answer.length + 1)
        for t in range(answer.length - 1, -1, -1):
            ways = [(0, target[1])] + [
                (g, target[g + 1] + g * step)
                for m, step in self._options(answer, t)
                for g in range(1, m + 1)
            ]
            best[t] = min((ms + best[t + g + 1][0], g, ms) for g, ms in ways)
        return best

    def _together(self, seats: Sequence[Seat]) -> Round:
        target, n = self._costs.target, len(seats)
        best: tuple[float, Round] = (-1.0, Round([], 0.0))
        reach = []
        for seat in seats:
            options = self._options(seat.answer, seat.t)
            free = max((m for m, step in options if step == 0.0), default=0)
            reach.append((free, max((m for m, _ in options), default=0)))
        for cap in range(1 + max(m for _, m in reach)):
            chains = [[1.0] * max(free, min(cap, m)) for free, m in reach]
            drafting = [min(cap, m) for free, m in reach if min(cap, m) > free]
            ms = sum(
                _at(self._costs.draft, sum(g > i for g in drafting))
                for i in range(max(drafting, default=0))
            )
            lengths = allocate(chains, target, ms)
            total = ms + target[n + sum(lengths)]
            best = max(best, ((n + sum(lengths)) / total, Round(lengths, total)))
        return best[1]
