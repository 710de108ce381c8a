"""The round: plan, draft, score, choose, verify, accept, observe. One sequence is the simple case of many."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import index
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._lib import ffi
from pyspec.drafters import NOTHING, Drafter, Proposal, TranslatedDrafter
from pyspec.engine.handle import MAX_DRAFT, Engine, Gate, Role
from pyspec.errors import Cancelled, DraftError, EngineBusy, EngineError, UnsupportedModel
from pyspec.policy.types import LOOKUP, Draft, Outcome, Place, Plan, Policy, SeqOutcome
from pyspec.stats import Tally
from pyspec.tokens import Source, Step, Token

log = logging.getLogger("pyspec")

_SOURCES = tuple(Source)

LOOKUP_MAX = 16
"""Longest draft asked of a Python drafter, tokens: a wider verify batch gains nothing on any curve measured."""


MAX_BATCH = 2**31 - 1
"""No limit of rows but llama.cpp's own."""


@dataclass(slots=True)
class Run:
    """One answer in flight on one sequence.

    tokens: committed text, prompt included. sampler: address of a llama sampler chain, 0 for argmax. remaining: tokens
    still allowed; where the answer goes on past them, it does so without drafts. drafting: which drafters it may have: "all",
    "lookup" (the Python drafter), "model" or "nothing". rows: where to keep the logits row of each emitted token, or None.
    """

    seq: int
    tokens: list[int]
    gate: Gate
    remaining: int
    sampler: int = 0
    draft_max: int = MAX_DRAFT
    drafting: str = "all"
    goes_on: bool = False
    rows: list[npt.NDArray[np.float32]] | None = None
    tally: Tally = field(default_factory=Tally)
    finish_reason: str | None = None


class _Outage:
    """Rounds that a model sits out after it failed: 8, and twice as many each time it fails again."""

    def __init__(self) -> None:
        self._left, self._length = 0, 8

    def begin(self) -> None:
        """It failed."""
        self._left = self._length
        self._length = min(2 * self._length, 4096)

    def lasts(self) -> bool:
        """Whether it sits out this round; ask once a round."""
        self._left -= 1
        return self._left >= 0

    def end(self) -> None:
        """It works."""
        self._length = 8


class Loop:
    """Rounds over the sequences of one engine.

    n_ctx: positions a sequence may use. drafter: a Python drafter; draft_model, companion: whether the engine has one;
    translated: a draft model behind text.
    n_batch: rows of one decode on the target. A drafter or a companion that fails is
    reported once and left out of the round, a draft model or a companion of some more rounds; the text stays the target's.
    """

    def __init__(
        self,
        engine: Engine,
        n_ctx: int,
        *,
        drafter: Drafter | None = None,
        draft_model: bool = False,
        companion: bool = False,
        translated: TranslatedDrafter | None = None,
        n_batch: int = MAX_BATCH,
        longest: int = MAX_DRAFT,
    ) -> None:
        self.engine = engine
        self.n_ctx = n_ctx
        self.drafter = drafter
        self.draft_model = draft_model
        self.companion = companion
        self.translated = translated
        self.n_batch = n_batch
        self.longest = longest
        self._stopping: Plan | None = None
        self._complained: set[str] = set()
        self._draft_outage, self._score_outage = _Outage(), _Outage()

    @property
    def can_draft(self) -> bool:
        """Whether there is anything to draft with."""
        return self.draft_model or self.drafter is not None or self.translated is not None

    def round(
        self, runs: Sequence[Run], policy: Policy, fills: Sequence[tuple[int, int]] = ()
    ) -> list[Step]:
        """One round over `runs`, one step a run.

        fills: (seq, n) prompt tokens to decode in the same batch; n 0 for a row that nobody reads.
        """
        if not any(self._may_draft(run) for run in runs):
            self.engine.verify(_in_order([(run.seq, 0, 0) for run in runs], fills))
            return [self._accept(run, 0, 0)[0] for run in runs]
        start = perf_counter()
        outcome = Outcome(seqs=(), t_verify=0.0, verify_rows=0)
        drafts = self._draft(runs, policy, outcome)
        if drafts is None:
            drafts, lengths = [Draft(run.seq, 0) for run in runs], [0] * len(runs)
        else:
            # a draft kept from an earlier round may be longer than this round's batch has room for
            lengths = [
                min(n, self._room(run, len(runs))) for n, run in zip(policy.choose(drafts), runs)
            ]
        self._verify(runs, lengths, fills, outcome)
        verdicts = [self._accept(run, n, draft.n) for run, n, draft in zip(runs, lengths, drafts)]
        outcome.seqs = [seen for _, seen in verdicts]
        outcome.t_round = 1e3 * (perf_counter() - start)
        policy.observe(outcome)
        return [step for step, _ in verdicts]

    # -- draft ---------------------------------------------------------------------------------------------------------

    def _may_draft(self, run: Run) -> bool:
        return self._may_look_up(run) or self._may_run_model(run)

    def _may_look_up(self, run: Run) -> bool:
        return self.drafter is not None and run.drafting in ("all", "lookup")

    def _may_run_model(self, run: Run) -> bool:
        return (self.draft_model or self.translated is not None) and run.drafting in (
            "all",
            "model",
        )

    def _place(self, run: Run, n_runs: int) -> Place:
        n = len(run.tokens)
        lag = 0
        if self._may_run_model(run):
            behind = self.translated
            lag = behind.lag(run.tokens) if behind else self.engine.lag(Role.DRAFT, run.seq, n)
        left = max(0, min(run.remaining, self.n_ctx - n))
        return Place(run.seq, self._room(run, n_runs), lag, left, n)

    def _room(self, run: Run, n_runs: int) -> int:
        """The longest draft that can be verified: one more token is always emitted after it."""
        if not run.tally.rounds:
            return 0  # the first token does not wait for a draft to read the prompt
        room = min(run.remaining, self.n_ctx + 1 - len(run.tokens), self.n_batch // n_runs)
        return max(0, min(room - 1, run.draft_max, self.longest))

    def _draft(self, runs: Sequence[Run], policy: Policy, outcome: Outcome) -> list[Draft] | None:
        places = [self._place(run, len(runs)) for run in runs]
        if not any(place.room for place in places):
            return None
        plan = policy.plan(places)
        drafts = [self._look_up(run, place.room, plan) for run, place in zip(runs, places)]
        asked = [
            min(n, place.room) if self._may_run_model(run) else 0
            for n, place, run in zip(plan.lengths, places, runs)
        ]
        if self.draft_model and not self._draft_outage.lasts():
            rest = [i for i, draft in enumerate(drafts) if draft.n == 0 and asked[i] > 0]
            if rest:
                for i, draft in zip(
                    rest,
                    self._try_model(
                        [runs[i].seq for i in rest], [asked[i] for i in rest], plan, outcome
                    ),
                ):
                    drafts[i] = draft
        elif self.translated is not None:
            for i, run in enumerate(runs):
                if drafts[i].n == 0 and asked[i] > 0:
                    drafts[i] = self._translate(self.translated, run, asked[i], outcome)
        return drafts

    def _translate(
        self, drafter: TranslatedDrafter, run: Run, limit: int, outcome: Outcome
    ) -> Draft:
        """A draft of a model behind text: paid for and judged as one in the engine is."""
        start, lag = perf_counter(), drafter.lag(run.tokens)
        proposal = self._propose(drafter, run, limit)
        n = len(proposal.tokens)
        self.engine.put_draft(run.seq, proposal.tokens)
        outcome.t_draft += 1e3 * (perf_counter() - start)
        outcome.draft_steps = max(outcome.draft_steps, n, 1)
        outcome.caught_up += lag
        return Draft(run.seq, n, p=proposal.p, entropy=proposal.entropy)

    def _try_model(
        self, seqs: list[int], limits: list[int], plan: Plan, outcome: Outcome
    ) -> list[Draft]:
        try:
            drafts = self._run_model(seqs, limits, plan, outcome)
        except (Cancelled, EngineBusy):
            raise
        except (EngineError, UnsupportedModel) as error:
            self._complain("the draft", error)
            self._draft_outage.begin()
            for seq in seqs:
                self.engine.put_draft(seq, ())
            return [Draft(seq, 0) for seq in seqs]
        self._draft_outage.end()
        return drafts

    def _look_up(self, run: Run, limit: int, plan: Plan) -> Draft:
        if self.drafter is None or limit < 1 or not self._may_look_up(run):
            return Draft(run.seq, 0)
        proposal = self._propose(self.drafter, run, min(limit, LOOKUP_MAX))
        n = len(proposal.tokens)
        if n == 0 or 0 < proposal.match_length < plan.lookup_min:
            return Draft(run.seq, 0)
        self.engine.put_draft(run.seq, proposal.tokens)
        return Draft(
            run.seq, n, source=LOOKUP, match_length=proposal.match_length, choices=proposal.choices
        )

    def _propose(self, drafter: Drafter, run: Run, limit: int) -> Proposal:
        try:
            proposal = drafter.propose(run.seq, run.tokens, limit)
            tokens = [index(token) for token in proposal.tokens]
            if len(tokens) > limit or any(not 0 <= token < self.engine.n_vocab for token in tokens):
                raise DraftError(
                    f"{len(tokens)} tokens drafted of {limit}, or ids that do not exist"
                )
            return replace(
                proposal,
                tokens=tokens,
                match_length=index(proposal.match_length),
                choices=index(proposal.choices),
            )
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, the answer goes on without it
            self._complain(drafter.name, error)
            return NOTHING

    def _tell_drafter(
        self, run: Run, tokens: tuple[Token, ...], n_verified: int, n_accepted: int
    ) -> None:
        drafter = self.drafter
        if drafter is None or n_verified == 0:
            return
        try:
            drafter.observe(run.seq, [token.id for token in tokens], n_verified, n_accepted)
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(drafter.name, error)

    def _run_model(
        self, seqs: list[int], limits: list[int], plan: Plan, outcome: Outcome
    ) -> list[Draft]:
        start = perf_counter()
        if plan is not self._stopping:
            self.engine.set_stop(plan.floors, plan.table)
            self._stopping = plan
        companion = plan.use_companion and self.companion and not self._score_outage.lasts()
        self.engine.draft(seqs, limits, keep_rows=companion)
        middle = perf_counter()
        scored = companion and self._score(seqs)
        views = [self.engine.drafted(seq) for seq in seqs]
        drafts = [_read(seq, view) for seq, view in zip(seqs, views)]
        outcome.t_draft = 1e3 * (middle - start)
        outcome.draft_steps = max(draft.n for draft in drafts)
        if scored:
            outcome.t_companion = 1e3 * (perf_counter() - middle)
            outcome.companion_rows = sum(draft.n for draft in drafts)
        outcome.caught_up = sum(view.fed for view in views)
        return drafts

    def _score(self, seqs: list[int]) -> bool:
        try:
            self.engine.score(seqs)
            self._score_outage.end()
        except (Cancelled, EngineBusy):
            raise
        except (EngineError, UnsupportedModel) as error:
            self._complain("the companion", error)
            self._score_outage.begin()
            return False
        return True

    def _complain(self, who: str, error: Exception) -> None:
        if who not in self._complained:
            self._complained.add(who)
            log.warning("%s failed and is left out: %s", who, error)

    # -- verify and accept ---------------------------------------------------------------------------------------------

    def _verify(
        self,
        runs: Sequence[Run],
        lengths: list[int],
        fills: Sequence[tuple[int, int]],
        outcome: Outcome,
    ) -> None:
        start = perf_counter()
        self.engine.verify(_in_order([(run.seq, 0, n) for run, n in zip(runs, lengths)], fills))
        outcome.t_verify = 1e3 * (perf_counter() - start)
        outcome.verify_rows = len(runs) + sum(lengths) + sum(n for _, n in fills)
        outcome.depth = max((len(run.tokens) for run in runs), default=0)

    def _accept(self, run: Run, n_verified: int, n_drafted: int) -> tuple[Step, SeqOutcome]:
        rows = (
            [self.engine.row(run.seq, i) for i in range(n_verified + 1)]
            if run.rows is not None
            else None
        )
        verdict = self.engine.accept(run.seq, run.sampler, run.gate)
        tokens = _emitted(verdict)
        if rows is not None and run.rows is not None:
            run.rows.extend(rows[: len(tokens)])
        run.tokens.extend([token.id for token in tokens])
        run.remaining -= len(tokens)
        self._count(run, verdict, n_drafted, tokens)
        self._tell_drafter(run, tokens, n_verified, verdict.n_accepted)
        run.finish_reason = self._ending(run, verdict)
        seen = SeqOutcome(run.seq, n_verified, verdict.n_accepted, verdict.n_relaxed)
        if verdict.next >= 0:
            seen.next_match = verdict.next == 1
        return Step(tokens, run.finish_reason), seen

    def _count(self, run: Run, verdict: Any, n_drafted: int, tokens: tuple[Token, ...]) -> None:
        run.tally.add(n_drafted, verdict.n_verified, verdict.n_accepted, len(tokens))
        if verdict.n_relaxed:
            run.tally.relaxed += verdict.n_relaxed
            run.tally.relaxed_nats += sum(token.gap for token in tokens)

    def _ending(self, run: Run, verdict: Any) -> str | None:
        if verdict.ended:
            return "stop"
        if run.remaining <= 0 and not run.goes_on:
            return "length"
        return "context" if len(run.tokens) > self.n_ctx else None


def _in_order(
    work: list[tuple[int, int, int]], fills: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """With the fills, by sequence: over streams llama.cpp takes rows together whose sequences follow each other."""
    if not fills and len(work) < 2:
        return work
    return sorted([*work, *((seq, n, -1 if n else 0) for seq, n in fills)])


def _emitted(verdict: Any) -> tuple[Token, ...]:
    n = verdict.n
    if n == 1:
        token = Token(
            verdict.token[0], _SOURCES[verdict.source[0]], verdict.gap[0], verdict.preferred[0]
        )
        return (token,)
    ids, sources = ffi.unpack(verdict.token, n), ffi.unpack(verdict.source, n)
    preferred, gaps = ffi.unpack(verdict.preferred, n), ffi.unpack(verdict.gap, n)
    return tuple(
        Token(id_, _SOURCES[source], gap, wanted)
        for id_, source, gap, wanted in zip(ids, sources, gaps, preferred)
    )


def _read(seq: int, view: Any) -> Draft:
    n = view.n
    draft = (
        Draft(seq, n, p=ffi.unpack(view.p, n), entropy=ffi.unpack(view.entropy, n))
        if n
        else Draft(seq, 0)
    )
    if n and view.scored:
        seen = ffi.unpack(view.agreement, n)
        draft.s, draft.a, draft.pc = [x.s for x in seen], [x.a for x in seen], [x.pc for x in seen]
        draft.agree = [x.top == token for x, token in zip(seen, ffi.unpack(view.token, n))]
    return draft
