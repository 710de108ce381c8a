"""What the engine's tests ask of a model, and drafters that do as they are told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspec._lib import check, ffi, lib
from pyspec.draft.lookup import Drafter, Proposal
from pyspec.draft.policies import parse_length
from pyspec.draft.simple import FixedPolicy
from pyspec.draft.types import Outcome, Place
from pyspec.engine.contexts import Contexts, Layout, Models
from pyspec.engine.handle import Engine, Gate
from pyspec.engine.round import Run
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Strict
from pyspec.text.parts import Step

GREEDY = Sampling(temperature=0.0)
CELLS = Layout(1024)


@dataclass(frozen=True)
class Answer:
    """One answer, flattened: ids, one letter of its source each ("t", "a" or "r"), gaps, and the steps."""

    ids: list[int]
    flags: str
    gaps: list[float]
    preferred: list[int]
    steps: list[Step]
    finish_reason: str | None


def ask(
    llm: Any, prompt: Sequence[int], n: int | None = 40, sampling: Sampling = GREEDY, **options: Any
) -> Answer:
    """Answer a prompt of ids with `llm.steps`."""
    steps: list[Step] = list(llm.steps(prompt, sampling, max_tokens=n, **options))
    tokens = [token for step in steps for token in step.tokens]
    ids, gaps, preferred = (
        [getattr(t, what) for t in tokens] for what in ("id", "gap", "preferred")
    )
    flags = "".join(token.source.label[0] for token in tokens)
    return Answer(ids, flags, gaps, preferred, steps, steps[-1].finish_reason if steps else None)


def drafted(llm: Any, n: int) -> tuple[list[int], list[float]]:
    """What the engine drafts after the text it holds: ids and probabilities."""
    engine = llm.assembly.engine
    engine.put_draft(0, ())
    engine.set_stop([0.0], None)
    engine.draft([0], [n])
    view = engine.drafted(0)
    return list(view.token[0 : view.n]), list(view.p[0 : view.n])


def ask_at_once(
    models: Models, prompts: Sequence[Sequence[int]], most: Sequence[int], *,
    length: str = "fixed:3", n_ctx: int = 256, layout: Layout = CELLS, first: int = 0,
) -> list[Run]:  # fmt: skip
    """Answer prompts of ids together, `most` tokens each, in the slots from `first`; the models are closed behind it."""
    contexts = Contexts(models, 4, n_ctx, layout)
    try:
        policy = FixedPolicy(parse_length(length).value)
        runs = [
            Run(i, list(prompt), Gate(Strict(), False), n)
            for i, (prompt, n) in enumerate(zip(prompts, most), first)
        ]
        for run in runs:
            contexts.engine.set_tokens(run.seq, run.tokens)
        while going := [run for run in runs if run.finish_reason is None]:
            contexts.loop.round(going, policy)
        assert not contexts.loop.failed
    finally:
        contexts.close()
        models.close()
    return runs


def check_four_at_once(
    open_llama: Callable[..., Any], target: Any, draft: Any, *, length: str = "fixed:3", layout: Layout = CELLS,
) -> None:  # fmt: skip
    """Each of four sequences has the text that it has alone, and drafts as often right."""
    prompts = [[5, 6, 7, 5], [9, 8, 7, 9], [20, 4], [11, 12, 13, 14, 15, 16]]
    alone, wanted = open_llama(target, draft=draft, length=length), []
    for i, prompt in enumerate(prompts):
        wanted.append((ask(alone, prompt, 27 + i).ids, alone.last_speculation["accepted"]))
    models = Models(str(target), str(draft), "none", n_threads=1, n_threads_batch=1, trust=True)
    runs = ask_at_once(models, prompts, range(27, 31), length=length, layout=layout)
    assert [(r.tokens[len(p) :], r.tally.accepted) for r, p in zip(runs, prompts)] == wanted


class Counters(NamedTuple):
    """What an engine has done since it was opened; decodes and their rows by role."""

    decodes: tuple[int, ...]
    rows: tuple[int, ...]
    refed: int


def counters(engine: Engine) -> Counters:
    """By the extension's own counts."""
    found = ffi.new("ps_counters *")
    check(lib.ps_counters_get(engine._engine, found))
    return Counters(tuple(found.decodes), tuple(found.rows), found.refed)


class Diary(FixedPolicy):
    """Writes down what it is asked and told: the places, the outcomes, and the rounds without drafts."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.places: list[Place] = []
        self.outcomes: list[Outcome] = []
        self.rounds: list[tuple[Any, ...]] = []

    def watch(self, *round_: Any) -> None:
        self.rounds.append(round_)
        super().watch(*round_)

    def plan(self, places: Any) -> Any:
        self.places += places
        return super().plan(places)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().observe(outcome)


class Scripted(Drafter):
    """Proposes what `write(tokens, limit)` says."""

    name = "scripted"

    def __init__(self, write: Callable[[Sequence[int], int], Any]) -> None:
        self._write = write

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Any:
        """What the script says; a list becomes a proposal, anything else goes out as it is."""
        answer = self._write(tokens, limit)
        return Proposal(answer) if isinstance(answer, (list, tuple)) else answer


def foretelling(text: Sequence[int], most: int = 64) -> Scripted:
    """A drafter that knows the whole text in advance and proposes its continuation, `most` tokens at a time."""
    text = list(text)
    return Scripted(lambda tokens, limit: text[len(tokens) : len(tokens) + min(limit, most)])
