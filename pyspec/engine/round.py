"""The round: plan, draft, score, choose, verify, accept, observe. Written for many runs; one is the simple case."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspec._lib import ffi, lib
from pyspec.draft.lookup import NOTHING, Drafter, Proposal
from pyspec.draft.simple import LengthPolicy, PlainRound
from pyspec.draft.types import LOOKUP, Draft, Outcome, Place, Plan, SeqOutcome
from pyspec.engine.handle import Engine, Gate, Role, draft_of, emitted
from pyspec.engine.statistics import Tally
from pyspec.errors import (
    Cancelled,
    DraftError,
    EngineBusy,
    EngineError,
    PyspecError,
    UnsupportedModel,
)
from pyspec.sampling.options import MAX_DRAFT, Coupling
from pyspec.text.parts import Step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyspec.grammar.masks import Masks

log = logging.getLogger("pyspec")

LOOKUP_MAX = 16
"""Longest draft asked of a Python drafter, in tokens: a wider verify batch gains nothing on any measured curve."""

_OF_ONE_TEXT = (lib.PS_E_SAMPLER, lib.PS_E_NUMERIC)

UNLIMITED = 2**31 - 1
"""No limit of an answer's tokens, which then ends with the context, or of a decode's rows, other than llama.cpp's own."""


@dataclass(slots=True)
class Run:
    """One answer in flight on one sequence."""

    seq: int
    tokens: list[int]  # committed, prompt included
    gate: Gate
    remaining: int  # tokens still allowed
    sampler: int = 0  # address of a llama sampler chain, 0 for none
    coupling: Coupling | None = None  # the noise that draws; None if sampler or argmax choose
    draft_max: int = MAX_DRAFT  # the longest draft allowed
    drafting: str = "all"  # who may draft, as in `AnswerOptions`
    goes_on: bool = False  # whether it continues after `remaining` tokens, without drafts
    missing: int = 0  # tokens before the last one that the target's KV lacks
    rows: list[npt.NDArray[np.float32]] | None = None  # collects the logits of emitted tokens
    guide: Masks | None = None  # the grammar that the answer follows
    tally: Tally = field(default_factory=Tally)
    finish_reason: str | None = None
    error: PyspecError | None = None  # why nothing could be accepted

    def extend(self, ids: Sequence[int]) -> None:
        """Commit the tokens of a round."""
        self.tokens.extend(ids)
        self.remaining -= len(ids)


class _DraftOrder(NamedTuple):
    """An order for a model's draft: at most `limit` tokens for the i-th run, which stands at `place`."""

    i: int
    run: Run
    place: Place
    limit: int


class Loop:
    """Rounds over the sequences of one engine.

    A drafter that fails is reported once, named in `failed`, and left out of the round; a draft model or companion is left out
    for good. The answer stays the target's.

    Args:
        n_ctx: positions that a sequence may use.
        draft_model, companion: whether the engine has one.
        n_batch: rows of one decode on the target.
        longest: most tokens of any draft.
        draft_longest: most tokens of the draft model's drafts.
        adapt_threads: adapts the number of threads between rounds; returns whether it changed.
    """

    def __init__(
        self,
        engine: Engine,
        n_ctx: int,
        *,
        drafter: Drafter | None = None,
        draft_model: bool = False,
        companion: bool = False,
        n_batch: int = UNLIMITED,
        longest: int = MAX_DRAFT,
        draft_longest: int = MAX_DRAFT,
        adapt_threads: Callable[[], bool] | None = None,
    ) -> None:
        self.engine = engine
        self.n_ctx = n_ctx
        self.drafter = drafter
        self.draft_model = draft_model
        self.companion = companion
        self.n_batch = n_batch
        self.longest, self.draft_longest = longest, draft_longest
        self.adapt_threads = adapt_threads
        self.failed: list[str] = []

    @property
    def can_draft(self) -> bool:
        """Whether there is a draft model or a drafter."""
        return self.draft_model or self.drafter is not None

    def begin(self, run: Run, held: int = -1, least: int = 0) -> int:
        """Load a run's tokens into its sequence; returns how many the target's KV holds.

        held: see `Engine.set_tokens`. least: positions that cannot be read again, since the last of them hold an image. Raises
        UnsupportedModel if the memory does not keep those.
        """
        kept = self.engine.set_tokens(run.seq, run.tokens, held)
        if kept < least:
            raise UnsupportedModel(
                "this model's memory cannot go back by a token without losing the image before it",
                "end the prompt with text, or use a model that is neither recurrent nor hybrid",
            )
        run.missing = len(run.tokens) - 1 - kept
        return kept

    def end(self, run: Run) -> None:
        """Tell the drafter that a run is over. It may remember the tokens, even if it never had room to draft."""
        if self.drafter is not None:
            self._tell(self.drafter.end, run.seq, run.tokens)

    def round(
        self,
        runs: Sequence[Run],
        policy: LengthPolicy,
        reading: Sequence[tuple[Run, int]] = (),
        padding: Sequence[int] = (),
    ) -> list[Step]:
        """Do one decode on the target, and return one step for each of `runs`, which generate.

        Prompt tokens that these runs still miss are read in the same decode. reading: (run, n) pairs; n more prompt tokens of
        each run are read in this decode. padding: sequences that get an unused row. Where one run's row or sampler
        leaves nothing to choose, its `error` says so, and the others go on.
        """
        if self.adapt_threads is not None and self.adapt_threads():
            policy.renew_costs()
        fills = [(run.seq, n, -1) for run, n in reading]
        steps: list[Step] = []
        if runs:
            steps = self._round(runs, policy, [*fills, *((seq, 0, 0) for seq in padding)])
        elif fills:
            self.engine.verify(fills)
        for run in runs:
            run.missing = 0
        for run, n in reading:
            run.missing -= n
        return steps

    def _round(
        self, runs: Sequence[Run], policy: LengthPolicy, fills: Sequence[tuple[int, int, int]]
    ) -> list[Step]:
        """Draft, verify and accept; the policy learns from it. fills: further work for the same decode."""
        start = perf_counter()
        for run in runs:
            self.engine.couple(run.seq, run.coupling)
        forced = [force(self.engine, run, self._room(run, len(runs))) for run in runs]
        places = [self._place(run, len(runs), forced=n) for run, n in zip(runs, forced)]
        drafts, outcome = [Draft(run.seq, 0) for run in runs], None
        if any(place.room for place in places):
            drafts, outcome = self._draft(runs, places, policy)
        chosen = policy.choose(drafts) if _any_drafted(drafts) else [0] * len(runs)
        # a draft kept from an earlier round may be longer than this round's batch allows
        lengths = [
            allowed(self.engine, run, n or min(own, place.room))
            for run, n, own, place in zip(runs, forced, chosen, places)
        ]
        before = perf_counter()
        self.engine.verify(_in_order([(run.seq, 0, n) for run, n in zip(runs, lengths)], fills))
        t_verify = 1e3 * (perf_counter() - before)
        steps, seqs = [], []
        for run, n, draft, by_grammar in zip(runs, lengths, drafts, forced):
            run.tally.target_ms += t_verify
            run.gate.judge(looked_up=draft.source == LOOKUP or by_grammar > 0)
            step, seen = self._accept(run, n, by_grammar or draft.n)
            steps.append(step)
            if by_grammar:
                run.tally.forced += seen.n_accepted
            seqs.append(SeqOutcome(run.seq, 0, 0) if by_grammar else seen)
        end, depth = perf_counter(), max([place.depth for place in places])
        read = _read(runs, fills)
        if outcome is not None and (outcome.draft_steps or any(lengths) or read):
            outcome.seqs, outcome.t_verify, outcome.depth = seqs, t_verify, depth
            outcome.t_round = 1e3 * (end - start)
            outcome.verify_rows = len(runs) + sum(lengths) + read
            policy.observe(outcome)
        elif not any(forced) and not read:  # else its time is not that of plain rows
            plain = PlainRound(len(runs), t_verify, 1e3 * (end - before), depth)
            policy.watch(plain, seqs)
        return steps

    # -- draft ---------------------------------------------------------------------------------------------------------

    def _room(self, run: Run, n_runs: int) -> int:
        """The longest draft of a run that can be verified; a round always emits one token more."""
        room = min(run.remaining, self.n_ctx + 1 - len(run.tokens), self.n_batch // n_runs) - 1
        return min(room, run.draft_max, self.longest)

    def _place(self, run: Run, n_runs: int, forced: int = 0) -> Place:
        """Where a run stands. A draft that a grammar forced leaves no room for another."""
        n = len(run.tokens)
        left = max(0, min(run.remaining, self.n_ctx - n))
        room = 0 if forced else self._room(run, n_runs)
        by_model = self._may_run_model(run)
        # the first token should not wait for the draft model to read the prompt
        if room < 1 or not run.tally.rounds or not (by_model or self._may_look_up(run)):
            return Place(run.seq, 0, 0, left, n)
        if not by_model:
            return Place(run.seq, room, 0, left, n, longest=0)
        scores = self.engine.lag(Role.COMPANION, run.seq, n) if self.companion else 0
        lag = self.engine.lag(Role.DRAFT, run.seq, n)
        return Place(run.seq, room, lag, left, n, scores, self.draft_longest)

    def _may_look_up(self, run: Run) -> bool:
        return self.drafter is not None and run.drafting in ("all", "lookup")

    def _may_run_model(self, run: Run) -> bool:
        return self.draft_model and run.drafting in ("all", "model")

    def _draft(
        self, runs: Sequence[Run], places: Sequence[Place], policy: LengthPolicy
    ) -> tuple[list[Draft], Outcome | None]:
        """One draft per run, by lookup if it finds something, else by a model; and what they took, None if neither drafted."""
        plan = policy.plan(places)
        drafts = [self._look_up(run, place.room) for run, place in zip(runs, places)]
        orders = [
            _DraftOrder(i, run, place, min(n, place.room))
            for i, (run, place, n) in enumerate(zip(runs, places, plan.lengths))
            if n > 0 and place.room > 0 and drafts[i].n == 0 and self._may_run_model(run)
        ]
        outcome = Outcome([], 0.0, 0)
        try:
            if orders:
                self._run_model(orders, plan, drafts, outcome)
        except (Cancelled, EngineBusy):
            raise
        except EngineError as error:
            self._complain("the draft", error)
            self.draft_model = False
            for one in orders:
                self.engine.put_draft(one.run.seq, ())
        return drafts, outcome if orders or _any_drafted(drafts) else None

    def _look_up(self, run: Run, limit: int) -> Draft:
        if self.drafter is None or limit < 1 or not self._may_look_up(run):
            return Draft(run.seq, 0)
        proposal = self._propose(self.drafter, run, min(limit, LOOKUP_MAX))
        n = len(proposal.tokens)
        if n == 0:
            return Draft(run.seq, 0)
        self.engine.put_draft(run.seq, proposal.tokens)
        return Draft(run.seq, n, source=LOOKUP, match_length=proposal.match_length)

    def _propose(self, drafter: Drafter, run: Run, limit: int) -> Proposal:
        try:
            proposal = drafter.propose(run.seq, run.tokens, limit)
            if not len(proposal.tokens):
                return NOTHING
            tokens = [index(token) for token in proposal.tokens]
            if len(tokens) > limit or min(tokens) < 0 or max(tokens) >= self.engine.n_vocab:
                raise DraftError(
                    f"{len(tokens)} tokens drafted of {limit}, or ids that do not exist"
                )
            return Proposal(tokens, index(proposal.match_length))
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, the answer goes on without it
            self._complain(drafter.name, error)
            return NOTHING

    def _tell(self, what: Callable[..., None], *about: Any) -> None:
        try:
            what(*about)
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(self.drafter.name if self.drafter else "", error)

    def _run_model(
        self, orders: Sequence[_DraftOrder], plan: Plan, drafts: list[Draft], outcome: Outcome
    ) -> None:
        start = perf_counter()
        self.engine.set_stop(plan.floors, plan.table)
        companion = plan.use_companion and self.companion
        seqs = [one.run.seq for one in orders]
        self.engine.draft(seqs, [one.limit for one in orders], keep_rows=companion)
        middle = perf_counter()
        scored = companion and self._score(seqs)
        end = perf_counter()
        views = [self.engine.drafted(seq) for seq in seqs]
        for one, view in zip(orders, views):
            drafts[one.i] = draft_of(one.run.seq, view)
        outcome.t_draft = 1e3 * (middle - start)
        outcome.draft_steps = max(view.n - view.kept for view in views)
        outcome.caught_up = sum(view.fed for view in views)
        if scored:
            outcome.t_companion = 1e3 * (end - middle)
            read = sum(one.place.companion_lag for one, view in zip(orders, views) if view.n)
            outcome.companion_read = read
            outcome.companion_rows = read + sum(view.n for view in views)

    def _score(self, seqs: list[int]) -> bool:
        try:
            self.engine.score(seqs)
        except (Cancelled, EngineBusy):
            raise
        except EngineError as error:
            self._complain("the companion", error)
            self.companion = False
            return False
        return True

    def _complain(self, who: str, error: Exception) -> None:
        if who not in self.failed:
            self.failed.append(who)
            log.warning("%s failed and is no longer used: %s", who, error)

    # -- verify and accept ---------------------------------------------------------------------------------------------

    def _accept(self, run: Run, n_verified: int, n_drafted: int) -> tuple[Step, SeqOutcome]:
        n_rows = 0 if run.rows is None else n_verified + 1
        rows = [self.engine.row(run.seq, i) for i in range(n_rows)]
        try:
            verdict = self.engine.accept(run.seq, run.sampler, run.gate)
        except EngineError as error:
            if error.code not in _OF_ONE_TEXT:
                raise
            run.error, run.finish_reason = error, "failed"
            return Step((), "failed"), SeqOutcome(run.seq, 0, 0)
        tokens = emitted(verdict, confirming=run.gate.gate.confirm > 0)
        if run.rows is not None:
            run.rows.extend(rows[: len(tokens)])
        run.extend([token.id for token in tokens])
        run.tally.add(n_drafted, verdict.n_verified, verdict.n_accepted, len(tokens))
        if verdict.n_relaxed:
            run.tally.relaxed += verdict.n_relaxed
            run.tally.relaxed_nats += sum(token.gap for token in tokens)
        run.finish_reason = self._ending(run, verdict)
        seen = SeqOutcome(run.seq, n_verified, verdict.n_accepted)
        if verdict.next >= 0:
            seen.next_match = verdict.next == 1
        return Step(tokens, run.finish_reason, n_verified + 1), seen

    def _ending(self, run: Run, verdict: Any) -> str | None:
        if verdict.ended:
            return "stop"
        if run.remaining <= 0 and not run.goes_on:
            return "length"
        return "context" if len(run.tokens) > self.n_ctx else None


def _any_drafted(drafts: Sequence[Draft]) -> bool:
    return any([draft.n for draft in drafts])  # noqa: C419 - a list is faster


def _read(runs: Sequence[Run], fills: Sequence[tuple[int, int, int]]) -> int:
    return sum([run.missing for run in runs]) + sum([n for _, n, _ in fills])


def _in_order(
    work: list[tuple[int, int, int]], fills: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Add the fills and sort by sequence: with streams, llama.cpp batches rows only of consecutive sequences."""
    if not fills and len(work) < 2:
        return work
    return sorted([*work, *fills])


def force(engine: Engine, run: Run, most: int) -> int:
    """Draft what a run's grammar forces, at most `most` tokens, and return how many."""
    if run.guide is None or most < 1 or run.drafting == "nothing":
        return 0
    tokens = run.guide.forced(most)
    if tokens:
        engine.put_draft(run.seq, tokens)
    return len(tokens)


def allowed(engine: Engine, run: Run, n: int) -> int:
    """Return how many of the first n drafted tokens of a run its grammar allows."""
    if run.guide is None or n == 0:
        return n
    return run.guide.allows(ffi.unpack(engine.drafted(run.seq).token, n))
