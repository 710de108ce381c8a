"""Plays a policy on recorded answers and a cost curve, as the loop would, without an engine.

Calls come in the loop's order: a first round without a draft, then plan, draft, (score), choose, verify, observe, or watch.
Answers are recorded, with what would be drafted at every position, or synthetic with planted acceptance. Times come from tables
of milliseconds by rows; the policy sees them with noise, the totals have none. Python's own time is included where it is given.

Chains go on after the first mismatch as the drafter would (a policy sees those tokens' p before it knows), and end early only
where the drafter or the answer ends. A round at t that accepts m tokens is followed by one at t + m + 1, so `matched` is all that
verification needs.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspec.draft.costs import OWN_MAX, SURE, CostCurve, KeptTime, RowTimes, expand, extended
from pyspec.draft.simple import LengthPolicy, PlainRound
from pyspec.draft.types import LONGEST, LOOKUP, Draft, Outcome, Place, Plan, SeqOutcome, table_bin
from pyspec.errors import InputError
from pyspec.machine.files import read_named

_NOISE = 0.03  # standard deviation of the logarithm of a time
_LUCK = 0  # added to every seed of noise

Aside = tuple[float, float]
"""Ms of a round outside its decodes: without a draft, and with one."""

NO_ASIDE: Aside = (0.0, 0.0)


class Chain(msgspec.Struct, omit_defaults=True):
    """What a drafter would propose at position t of an answer, if the tokens before t were committed.

    n: drafted tokens, of which the first `matched` agree with the answer. match_length: length of a lookup match, 0 for a
    model. p: how sure the draft is of each token; empty for lookup. s, a, pc, agree: S, A, the companion's probability and
    whether the token is its argmax; empty where no companion ran.
    """

    t: int
    n: int
    matched: int
    match_length: int = 0
    p: Sequence[float] = ()
    s: Sequence[float] = ()
    a: Sequence[float] = ()
    pc: Sequence[float] = ()
    agree: Sequence[bool] = ()

    @property
    def seen(self) -> int:
        """Tokens whose outcome a strict round of the whole draft would show: the accepted ones and the first refused one."""
        return min(self.matched + 1, self.n)

    def draft(self, n: int, companion: bool = True) -> Draft:
        """The first n tokens as a policy sees them, with the companion's values if it ran."""
        if self.match_length:
            return Draft(0, n, source=LOOKUP, match_length=self.match_length)
        out = Draft(0, n, self.p[:n])
        if companion and self.s:
            out.s, out.a, out.pc, out.agree = self.s[:n], self.a[:n], self.pc[:n], self.agree[:n]
        return out


NOTHING = Chain(0, 0, 0)
"""Stands for no proposal."""


class Answer(msgspec.Struct):
    """One answer: its length, its prompt's length, and what the draft model and lookup propose, by position.

    window: how far back a draft that reads the target's states begins, which reads accepted tokens again; 0 for a draft that
    keeps them. asked: the most tokens that were requested, which is all a policy may know of the length; 0 if it knows the
    length.
    """

    length: int
    prompt: int
    models: dict[int, Chain]
    lookups: dict[int, Chain]
    window: int = 0
    asked: int = 0

    def unread(self, behind: int) -> int:
        """How many of the tokens missing in the draft model's KV it reads."""
        return min(behind, self.window) if self.window else behind

    def model(self, t: int) -> Chain:
        """What the draft model proposes after t committed tokens."""
        return self.models.get(t, NOTHING)

    def lookup(self, t: int) -> Chain:
        """What prompt lookup proposes there."""
        return self.lookups.get(t, NOTHING)


def save_rounds(path: Path, answers: Sequence[Answer]) -> None:
    """Write answers as compressed msgpack."""
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(answers)))


def load_rounds(path: Path) -> list[Answer]:
    """Read what `save_rounds` wrote. Raises InputError for any other file."""
    try:
        return msgspec.msgpack.decode(gzip.decompress(read_named(path, 1 << 30)), type=list[Answer])
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise InputError(f"{path} was not written by `bench/pair.py --rounds`: {error}") from None


class Times:
    """Time in ms by rows: given up to some count, and beyond that extrapolated as policies do."""

    def __init__(self, points: Mapping[int, float], unit: float = 1.0) -> None:
        self.table = [unit * t for t in expand(points)]

    def __call__(self, rows: int) -> float:
        """The time of this many rows; 0 for none."""
        return extended(self.table, rows)


class Costs(NamedTuple):
    """What decodes cost: the target's rows, the draft's rows (one step of n sequences), the companion's rows.

    deeper: ms that each position of context adds to a row of the target.
    """

    target: Times
    draft: Times
    companion: Times
    deeper: float = 0.0

    def verify(self, rows: int, depth: int) -> float:
        """Ms of a decode of the target."""
        return self.target(rows) + self.deeper * rows * depth

    def curve(self) -> CostCurve:
        """The true curve of such a machine."""
        depths = (0, 4096) if self.deeper else (0,)
        tables = {
            depth: [self.verify(n, depth) for n in range(len(self.target.table))]
            for depth in depths
        }
        return known_curve(tables, self.draft.table, self.companion.table)


def known_curve(
    target: Mapping[int, Sequence[float]], draft: Sequence[float], companion: Sequence[float]
) -> CostCurve:
    """A curve that is known: target times by depth, then draft and companion; index 0 is 0 rows."""
    return CostCurve(*(RowTimes(bases) for bases in (target, {0: draft}, {0: companion})))


def timed_rows(target: Times, seed: int) -> dict[int, KeptTime]:
    """A target's rows as a process times them before its first answer."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return {
        n: KeptTime(target(n) * exp(rng.gauss(0.0, _NOISE)), SURE) for n in range(1, OWN_MAX + 1)
    }


def fresh_curve(costs: Costs, shares: tuple[float, float], seed: int, card: bool) -> CostCurve:
    """The curve of a process that has timed the target's rows, and nothing else. shares, card: of `CostCurve.prior`."""
    times = timed_rows(costs.target, seed)
    rows = {n: kept.ms for n, kept in times.items()}
    more = {1: costs.deeper, 8: 8.0 * costs.deeper} if costs.deeper else None
    curve = CostCurve.prior(rows, *shares, deeper=more, card=card)
    curve.begin_with(times, {})
    return curve


class Position:
    """An answer in progress: committed tokens, the side models' lag, this round's draft, and tokens kept from the last one."""

    def __init__(self, text: Answer, seq: int = 0) -> None:
        self.text, self.seq, self.t = text, seq, 0
        self.behind = self.companion_lag = text.prompt - 1
        self.kept = 0
        self.begin()

    @property
    def lag(self) -> int:
        """Tokens that the draft model has to read."""
        return self.text.unread(self.behind)

    @property
    def room(self) -> int:
        """The longest draft that can be verified: the token after it must fit, and the first round has no draft."""
        return max(0, self.text.length - self.t - 1) if self.t else 0

    @property
    def depth(self) -> int:
        """Its length in tokens, with the prompt."""
        return self.text.prompt + self.t

    @property
    def place(self) -> Place:
        """Where the answer stands, as the loop describes it to a policy."""
        left = max(self.text.length, self.text.asked) - self.t
        longest = LONGEST if self.text.models else 0
        return Place(self.seq, self.room, self.lag, left, self.depth, self.companion_lag, longest)

    @property
    def by_model(self) -> int:
        """Tokens of this round's draft, if the draft model made it."""
        return self.draft.n if self.draft.source != LOOKUP else 0

    def begin(self) -> None:
        """Begin a round with nothing drafted."""
        self.chain, self.draft = NOTHING, Draft(0, 0)

    def pick(self, plan: Plan, longest: int) -> None:
        """Draft: by lookup if its match is long enough, else by the model as far as the floors allow."""
        self.chain, kept, self.kept = self.text.lookup(self.t), self.kept, 0
        n = min(self.chain.n, self.room)
        if not self.chain.match_length:
            self.chain, most = self.text.model(self.t), max(0, min(longest, self.room))
            # a companion scores whole drafts, so none is kept where it runs
            self.kept = 0 if plan.use_companion or not most else kept
            n = max(self.kept, drafted(self.chain, most, plan, self.kept)) if most else 0
        self.draft = self.chain.draft(n, plan.use_companion)
        self.draft.seq = self.seq

    def settle(self, used: int, scored: bool) -> SeqOutcome:
        """Commit what is accepted of `used` verified tokens; a model that drafted lacks at most its last token afterwards."""
        accepted, n = min(used, self.chain.matched), self.by_model
        following = used < self.chain.matched if accepted == used < self.draft.n else None
        self.t = min(self.t + accepted + 1, self.text.length)
        goes_on = bool(n and following) and not self.text.window
        self.kept = n - accepted - 1 if goes_on else 0
        held = int(accepted >= n)
        model = accepted if self.text.window else held
        self.behind = model if n else self.behind + accepted + 1
        self.companion_lag = held if n and scored else self.companion_lag + accepted + 1
        return SeqOutcome(self.seq, used, accepted, next_match=following)


class Player:
    """Plays a policy over answers, and counts ms without noise, tokens, rounds, and in which rounds the draft model ran.

    stalls: {round: extra ms of its verify}, seen by the policy but not counted. aside: seen and counted.
    """

    def __init__(
        self, policy: LengthPolicy, costs: Costs, seed: int = 0,
        stalls: Mapping[int, float] | None = None, aside: Aside = NO_ASIDE,
    ) -> None:  # fmt: skip
        self.policy, self.costs, self._aside = policy, costs, aside
        self.ms, self.tokens, self.rounds = 0.0, 0, 0
        self.drafted: list[bool] = []
        self._rng = random.Random(seed + _LUCK)  # noqa: S311 - reproducible, not secret
        self._stalls = stalls or {}

    @property
    def speed(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms

    def play(self, texts: Sequence[Answer], together: int = 1) -> Player:
        """Play all answers to their end, so many at a time."""
        for first in range(0, len(texts), together):
            live = [Position(text, i) for i, text in enumerate(texts[first : first + together])]
            for at in live:
                self.policy.begin_sequence(at.seq)
            while live := [at for at in live if at.t < at.text.length]:
                self._round(live)
        self.tokens += sum(text.length for text in texts)
        return self

    def _round(self, live: Sequence[Position]) -> None:
        depth, scored = max(at.depth for at in live), False
        out = Outcome((), 0.0, 0, depth=depth)
        for at in live:
            at.begin()
        if any(at.room for at in live):
            plan = self.policy.plan([at.place for at in live])
            for at, longest in zip(live, plan.lengths, strict=True):
                at.pick(plan, longest)
            scored = self._draft(live, plan, out)
        drew = any(at.draft.n for at in live)
        used = self.policy.choose([at.draft for at in live]) if drew else [0] * len(live)
        out.verify_rows = len(live) + sum(used)
        out.t_verify = self.costs.verify(out.verify_rows, depth)
        aside = self._aside[out.draft_steps > 0]
        self.ms += out.t_draft + out.t_companion + out.t_verify + aside
        self.drafted.append(out.draft_steps > 0)
        out.seqs = [at.settle(n, scored) for at, n in zip(live, used, strict=True)]
        out.t_verify = self._noisy(out.t_verify) + self._stalls.get(self.rounds, 0.0)
        out.t_draft, out.t_companion = self._noisy(out.t_draft), self._noisy(out.t_companion)
        if aside:
            out.t_round = out.t_verify + out.t_draft + out.t_companion + aside
        self.rounds += 1
        if out.draft_steps or any(used):
            self.policy.observe(out)
        else:
            plain = PlainRound(len(live), out.t_verify, out.t_round or out.t_verify, depth)
            self.policy.watch(plain, out.seqs)

    def _draft(self, live: Sequence[Position], plan: Plan, out: Outcome) -> bool:
        """Set the side models' times, which draft for all sequences in step; returns whether the companion scored."""
        steps = [at.by_model - at.kept for at in live if at.by_model > at.kept]
        if steps:
            out.draft_steps = max(steps)
            read = [at.lag for at in live if at.by_model and not at.kept]
            out.caught_up = sum(read)
            rest = (sum(n > i for n in steps) for i in range(1, out.draft_steps))
            out.t_draft = self.costs.draft(out.caught_up + len(steps))
            out.t_draft += sum(map(self.costs.draft, rest))
        drafts = [at for at in live if at.by_model and at.draft.s]
        if not (plan.use_companion and drafts):
            return False
        out.companion_read = sum(at.companion_lag for at in drafts)
        out.companion_rows = out.companion_read + sum(at.by_model for at in drafts)
        out.t_companion = self.costs.companion(out.companion_rows)
        return True

    def _noisy(self, ms: float) -> float:
        """The time that a clock would show."""
        return ms * exp(self._rng.gauss(0.0, _NOISE)) if ms else 0.0


def drafted(chain: Chain, longest: int, plan: Plan, kept: int = 0) -> int:
    """Tokens after which the loop in C would stop drafting, going on from the `kept` ones."""
    survival, most = 1.0, min(longest, chain.n)
    if plan.table is None:
        return most
    for i in range(most):
        survival *= plan.table[table_bin(chain.p[i])]
        if i + 1 >= kept and survival < plan.floors[min(i, len(plan.floors) - 1)]:
            return i + 1
    return most


def fixed_speed(texts: Sequence[Answer], costs: Costs, k: int, aside: Aside = NO_ASIDE) -> float:
    """Tokens per ms when k tokens are always drafted, one answer at a time."""
    ms, tokens, step = 0.0, 0, costs.draft(1)
    verify = [costs.target(n + 1) for n in range(k + 1)]
    for text in texts:
        t, lag = 0, text.prompt - 1
        while t < text.length:
            chain = text.model(t) if t else NOTHING
            n = min(k, text.length - t - 1, chain.n)
            accepted = min(n, chain.matched)
            ms += verify[n] + aside[n > 0]
            if n:
                ms += costs.draft(1 + text.unread(lag)) + (n - 1) * step
                lag = accepted if text.window else int(accepted == n)
            else:
                lag += 1
            t += accepted + 1
        tokens += text.length
    return tokens / ms


def oracle_speed(texts: Sequence[Answer], costs: Costs) -> float:
    """Tokens per ms of the best lengths in hindsight, one answer at a time.

    Correct tokens are verified, and wrong ones after them where a decode of more rows is cheaper. Each answer is solved backward
    over positions: best[t] is the least time from t committed tokens to the end. The draft model reads the prompt before its
    first token and then what each round makes it read again (`reread_ms`), or is not used for that answer at all.
    """
    ms = tokens = 0.0
    for text in texts:
        with_model = reading_ms(text, costs) + _least_ms(text, costs, model=True)
        ms += min(with_model, _least_ms(text, costs, model=False))
        tokens += text.length
    return tokens / ms


def _least_ms(text: Answer, costs: Costs, *, model: bool) -> float:
    n, step = text.length, costs.draft(1)
    verify = [costs.target(k + 1) for k in range(LONGEST + 1)]
    again = [reread_ms(text, costs, k) for k in range(LONGEST + 1)]
    best = [0.0] * (n + 1)
    for t in range(n - 1, 0, -1):
        best[t] = verify[0] + best[t + 1]
        for chain in (text.model(t) if model else NOTHING, text.lookup(t)):
            most = min(chain.n, LONGEST, n - t - 1)
            for k in range(1, most + 1):  # one wrong token more may be cheaper than none
                right, after = min(k, chain.matched), 0.0
                if not chain.match_length:
                    after = k * step + (again[right] if t + right + 1 < n else 0.0)
                best[t] = min(best[t], verify[k] + after + best[t + right + 1])
    return verify[0] + best[1]


def reading_ms(text: Answer, costs: Costs) -> float:
    """Milliseconds that the draft model takes to read the prompt, beyond a step."""
    return costs.draft(1 + text.unread(text.prompt - 1)) - costs.draft(1)


def reread_ms(text: Answer, costs: Costs, accepted: int) -> float:
    """Milliseconds that the draft model takes to read this many accepted tokens again."""
    return costs.draft(1 + accepted) - costs.draft(1) if text.window else 0.0


def planted(
    rng: random.Random, acceptance: float, length: int, prompt: int, spread: float = 1.5, window: int = 0
) -> Answer:  # fmt: skip
    """An answer with planted acceptance.

    Position t is accepted with a chance q(t) whose mean is `acceptance`: logit q varies by `spread` (standard deviation) around a
    level, with correlation 0.5 to its predecessor. The draft's own probability predicts q with an error of 0.8 in logits; after a
    refusal it predicts nothing. Whether a position is accepted is drawn once. No companion runs, and nothing repeats.
    """
    level, z, follow, error = _level(acceptance, spread), rng.gauss(0.0, 1.0), 0.5, 0.8
    fresh = (1.0 - follow**2) ** 0.5
    says, off, ok = [], [], []
    for _ in range(length + LONGEST):
        z = follow * z + fresh * rng.gauss(0.0, 1.0)
        logit = level + spread * z
        ok.append(rng.random() < _sigmoid(logit))
        says.append(_sigmoid(1.1 * logit + 0.3 + rng.gauss(0.0, error)))
        off.append(_sigmoid(rng.gauss(level - 1.0, spread + error)))
        rng.gauss(0.0, 0.25)  # keeps the random sequence of earlier versions
    answer = Answer(length, prompt, {}, {}, window)
    for t in range(length):
        right = next((i for i in range(LONGEST) if not ok[t + i]), LONGEST)
        p = says[t : t + right + 1] + off[t + right + 1 : t + LONGEST]
        answer.models[t] = Chain(t, LONGEST, right, p=p[:LONGEST])
    return answer


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + exp(-z))


def _level(mean: float, spread: float) -> float:
    """The logit around which sigmoid(level + spread * N(0, 1)) has the wanted mean."""
    if spread == 0.0:
        return log(mean / (1.0 - mean))
    nodes = [(k / 8.0, exp(-((k / 8.0) ** 2) / 2.0)) for k in range(-32, 33)]
    total = sum(w for _, w in nodes)
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        got = sum(w * _sigmoid(middle + spread * x) for x, w in nodes) / total
        low, high = (middle, high) if got < mean else (low, middle)
    return low
