"""Records what a pair of models would draft at every position of answers, and what acceptance that teaches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.lookup import LookupDrafter
from pyspec.draft.simple import LengthPolicy
from pyspec.draft.stopping import forecast, learn
from pyspec.draft.types import Draft, Place, Plan, SeqOutcome
from pyspec.engine.profiles import Prior, SideFile, hashes_of, prior_learned
from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.files import write_whole
from pyspec.sampling.options import Sampling, derive_seed
from pyspec.text.parts import common_prefix
from pyspec.text.template import ChatTemplate

from .questions import Question, Report
from .simulate import Answer, Chain


def record(
    llm: SpeculativeLlama, questions: Sequence[Question], *, kmax: int = 16, max_tokens: int = 64,
    budget_s: float = inf, temperature: float = 0.0, report: Report = lambda *_: None,
) -> list[Answer]:  # fmt: skip
    """Record answers to `questions` until `budget_s` seconds have passed."""
    until, template = perf_counter() + budget_s, ChatTemplate.of(llm)
    answers: list[Answer] = []
    for done, question in enumerate(questions):
        report(done, len(questions), question.category)
        if perf_counter() > until:
            break
        prompt = question.prompt(template)
        drawn = Sampling(temperature=temperature, seed=derive_seed(1, 0, *prompt))
        answers.append(
            record_answer(llm, prompt, drawn, max_tokens=max_tokens, kmax=kmax, until=until)
        )
    return answers


def learned_from(answers: Sequence[Answer]) -> Acceptance:
    """What the estimators learn from every recorded chain, as rounds that verified all of it."""
    acceptance = Acceptance()
    for answer in answers:
        for chain in answer.models.values():
            seen = forecast(acceptance, chain.draft(chain.n))
            learn(acceptance, seen, SeqOutcome(0, chain.n, chain.matched))
        for chain in answer.lookups.values():
            hits = [i < chain.matched for i in range(chain.seen)]
            acceptance.lookup.update(chain.match_length, hits)
    return acceptance


def by_position(answers: Sequence[Answer], kmax: int) -> list[float]:
    """Share of drafted tokens that were accepted where all before them were, by position."""
    chains = [chain for answer in answers for chain in answer.models.values()]
    seen = [sum(chain.seen > i for chain in chains) for i in range(kmax)]
    hits = [sum(chain.matched > i for chain in chains) for i in range(kmax)]
    return [hit / n for hit, n in zip(hits, seen) if n]


class _Recording(LengthPolicy):
    """Drafts kmax tokens in each round, keeps them by sequence length, and verifies none, so that every position has a round."""

    def __init__(self, engine: Any, kmax: int) -> None:
        super().__init__()
        self._engine, self._kmax = engine, kmax
        self.drafts: dict[int, tuple[list[int], Draft]] = {}
        self._depth = 0

    def plan(self, places: Sequence[Place]) -> Plan:
        """Plan the longest possible draft, scored by the companion."""
        (place,) = places
        self._depth = place.depth
        return Plan([min(self._kmax, place.room)], use_companion=True)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Keep the draft; verify none of it."""
        (draft,) = drafts
        view = self._engine.drafted(0)
        self.drafts[self._depth] = [int(view.token[i]) for i in range(draft.n)], draft
        return [0]


_GREEDY = Sampling(temperature=0.0)


def record_answer(
    llm: SpeculativeLlama, prompt: Sequence[int], sampling: Sampling = _GREEDY, *,
    max_tokens: int = 128, kmax: int = 16, until: float = inf,
) -> Answer:  # fmt: skip
    """Record one answer with what would have been drafted; it ends at `until` on `perf_counter`.

    Chains near the end are shorter, as in the loop: the token after the draft must fit, too.
    """
    recording = _Recording(llm.assembly.engine, kmax)
    tokens: list[int] = []
    steps = llm.steps(prompt, sampling, max_tokens=max_tokens, policy=recording, drafting="model")
    with closing(steps):
        for step in steps:
            tokens += [token.id for token in step.tokens]
            if perf_counter() > until:
                break
    window = llm.assembly.engine.window
    answer = Answer(len(tokens), len(prompt), {}, {}, window, asked=max_tokens)
    index = LookupDrafter()
    for t in range(len(tokens)):
        found = index.propose(0, [*prompt, *tokens[:t]], min(kmax, len(tokens) - t - 1))
        if kept := recording.drafts.get(len(prompt) + t):
            _keep(answer.models, tokens, t, *kept)
        draft = Draft(0, len(found.tokens), match_length=found.match_length)
        _keep(answer.lookups, tokens, t, list(found.tokens), draft)
    return answer


def _keep(
    chains: dict[int, Chain], tokens: Sequence[int], t: int, drafted: list[int], draft: Draft
) -> None:
    """Add the chain of one position, cut where the answer ends: what came after is unknown."""
    n = min(len(drafted), len(tokens) - t)
    if n < 1:
        return
    right = common_prefix(drafted[:n], tokens[t:])
    chain = Chain(t, n, right, draft.match_length, draft.p[:n])
    if draft.s and draft.a and draft.pc and draft.agree:
        chain.s, chain.a = draft.s[:n], draft.a[:n]
        chain.pc, chain.agree = draft.pc[:n], [bool(one) for one in draft.agree[:n]]
    chains[t] = chain


def save_prior(sides: Sequence[SideFile], learned: Acceptance, *, coupled: bool) -> Path:
    """Write what a run taught beside the draft, as the table of its kind of draws; the other table stays as it was known.

    Returns its path. Raises OptionError.
    """
    draft, companion = hashes_of(sides)
    if not draft:
        raise OptionError("there is no draft model to write a prior for", "name one with --draft")
    known = prior_learned(sides)
    tables = (
        (known.calibration, learned.calibration)
        if coupled
        else (learned.calibration, known.coupled)
    )
    path = sides[0].path.with_suffix(".prior.json")
    write_whole(
        path,
        [msgspec.json.encode(Prior(draft, companion, tables[0], learned.companion, tables[1]))],
    )
    return path
