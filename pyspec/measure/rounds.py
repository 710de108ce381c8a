"""Recorded rounds: what would be drafted from every position of a greedy answer, as bench/replay.py plays them.

Chains go on after the first mismatch as the drafter would (a policy sees those tokens' p before it knows), and stop early
only at the drafter's own end, e.g. an end-of-generation token, or where the answer ends. A round at position t that accepts
m tokens is followed by one at t + m + 1, so `matched` may be all that decides how far it goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.drafters import LookupDrafter
from pyspec.errors import InputError
from pyspec.llama import SpeculativeLlama
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import LOGIT_MAX, LOOKUP, Draft, Place, Plan, logit
from pyspec.sampling import Sampling
from pyspec.tokens import common_prefix


class Chain(msgspec.Struct):
    """What a drafter would propose at position t of an answer, were its tokens before t committed.

    n: drafted tokens, of which the first `matched` are the answer's own. match_length, choices: tokens that matched and how
    many different ones had followed; 0 and 1 but for lookup. p, h: the draft's full-softmax probability of each token and the
    entropy in nats; empty for lookup. s, a, pc, agree: S, A, the companion's probability and whether the token is its argmax;
    empty where no companion ran.
    """

    t: int
    n: int
    matched: int
    match_length: int = 0
    choices: int = 1
    p: Sequence[float] = ()
    h: Sequence[float] = ()
    s: Sequence[float] = ()
    a: Sequence[float] = ()
    pc: Sequence[float] = ()
    agree: Sequence[bool] = ()

    @property
    def seen(self) -> int:
        """Tokens whose fate a strict round of the whole draft would show: those accepted, and the first refused one."""
        return min(self.matched + 1, self.n)

    def draft(self, n: int, seq: int = 0, companion: bool = True) -> Draft:
        """The first n tokens as a policy sees them."""
        if self.match_length:
            return Draft(
                seq, n, source=LOOKUP, match_length=self.match_length, choices=self.choices
            )
        out = Draft(seq, n, self.p[:n], self.h[:n])
        if companion and self.s:
            out.s, out.a, out.pc, out.agree = self.s[:n], self.a[:n], self.pc[:n], self.agree[:n]
        return out


NOTHING = Chain(0, 0, 0)
"""Where nothing was proposed."""


class Answer(msgspec.Struct):
    """One answer: how long it and its prompt are, and what the draft model and lookup propose, by position."""

    length: int
    prompt: int
    models: dict[int, Chain]
    lookups: dict[int, Chain]

    def model(self, t: int) -> Chain:
        """What the draft model proposes where t tokens are committed."""
        return self.models.get(t, NOTHING)

    def lookup(self, t: int) -> Chain:
        """What prompt lookup proposes there."""
        return self.lookups.get(t, NOTHING)


# -- files ---------------------------------------------------------------------------------------------------------------


_COLUMNS = ("answer", "t", "n", "matched", "match_length", "choices")
_SPANS = {"p": LOGIT_MAX, "h": 12.0, "s": 1.0, "a": 1.0, "pc": LOGIT_MAX, "agree": 1.0}
"""What is kept of each drafted token in one byte: up to how much, and of p and pc the logit, from its negative on."""


_NOT_ONE = (OSError, EOFError, AttributeError, LookupError, TypeError, ValueError, BadZipFile)
"""What numpy and msgspec raise of files that are others, or damaged."""


def save_rounds(path: Path, answers: Sequence[Answer]) -> None:
    """Write answers as npz. Logits are kept in steps of 0.06, all else in 255 steps."""
    chains = [
        (i, c) for i, a in enumerate(answers) for c in (*a.models.values(), *a.lookups.values())
    ]
    rows = [(i, c.t, c.n, c.matched, c.match_length, c.choices) for i, c in chains]
    meta = msgspec.json.encode({"answers": [(a.length, a.prompt) for a in answers]})
    columns: dict[str, Any] = {"meta": np.frombuffer(meta, dtype=np.uint8)}
    table = np.array(rows, dtype=np.int16).reshape(-1, len(_COLUMNS))
    columns |= dict(zip(_COLUMNS, table.T, strict=True))
    for name in _SPANS:
        columns[name] = _packed(name, [x for _, c in chains for x in getattr(c, name)])
    with path.open("wb") as out:
        np.savez_compressed(out, **columns)


def load_rounds(path: Path) -> list[Answer]:
    """Read what `save_rounds` wrote. Raises InputError where it is no such file."""
    try:
        with path.open("rb") as packed, np.load(packed) as file:
            data: dict[str, Any] = {name: file[name] for name in file.files}
        sizes = msgspec.json.decode(data["meta"].tobytes())["answers"]
        rows = zip(*(data[name].tolist() for name in _COLUMNS), strict=True)
    except _NOT_ONE as error:
        raise InputError(f"{path} is no file of `pyspec profile --rounds`: {error}") from None
    kept = {name: _unpacked(name, data[name]) for name in _SPANS if name in data}
    answers = [Answer(n, prompt, {}, {}) for *_, n, prompt in sizes]
    at = 0
    for number, t, *row in rows:
        chain = Chain(t, *row)
        if chain.match_length:
            answers[number].lookups[t] = chain
            continue
        answers[number].models[t] = chain
        for column, values in kept.items():
            setattr(chain, column, values[at : at + chain.n])
        at += chain.n
    return answers


def _packed(name: str, values: Sequence[float]) -> npt.NDArray[np.uint8]:
    span = _SPANS[name]
    if span == LOGIT_MAX:
        values = [(logit(p) + span) / 2.0 for p in values]
    return np.clip(np.rint(np.array(values) * (255.0 / span)), 0, 255).astype(np.uint8)


def _unpacked(name: str, data: npt.NDArray[np.uint8]) -> list[float]:
    span = _SPANS[name]
    if name == "agree":
        return (data > 0).tolist()  # type: ignore[no-any-return]
    if span == LOGIT_MAX:
        return (1.0 / (1.0 + np.exp(span - data * (2.0 * span / 255.0)))).tolist()  # type: ignore[no-any-return]
    return (data * (span / 255.0)).tolist()  # type: ignore[no-any-return]


# -- recording ---------------------------------------------------------------------------------------------------------


class _Recording(LengthPolicy):
    """Drafts kmax tokens each round, keeps them by the text's length, and verifies none: so every position has a round."""

    def __init__(self, engine: Any, kmax: int) -> None:
        super().__init__()
        self._engine, self._kmax = engine, kmax
        self.drafts: dict[int, tuple[list[int], Draft]] = {}
        self._depth = 0

    def plan(self, places: Sequence[Place]) -> Plan:
        """The longest draft there may be, judged by the companion."""
        (place,) = places
        self._depth = place.depth
        return Plan([min(self._kmax, place.room)], use_companion=True)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Keep the draft; verify nothing of it."""
        (draft,) = drafts
        view = self._engine.drafted(0)
        self.drafts[self._depth] = [int(view.token[i]) for i in range(draft.n)], draft
        return [0]


def record_answer(
    llm: SpeculativeLlama, prompt: Sequence[int], *, max_tokens: int = 128, kmax: int = 16,
    until: float = math.inf,
) -> Answer:  # fmt: skip
    """One greedy answer with what would have been drafted; it ends at `until` on `perf_counter`.

    Chains near the end are shorter, as in the loop: the token after the draft must fit, too.
    """
    recording = _Recording(llm.assembly.session.engine, kmax)
    tokens: list[int] = []
    greedy = Sampling(temperature=0.0)
    steps = llm.steps(prompt, greedy, max_tokens=max_tokens, policy=recording, drafting="model")
    with closing(steps):
        for step in steps:
            tokens += [token.id for token in step.tokens]
            if perf_counter() > until:
                break
    answer = Answer(len(tokens), len(prompt), {}, {})
    index = LookupDrafter()
    for t in range(len(tokens)):
        if kept := recording.drafts.get(len(prompt) + t):
            _keep(answer.models, tokens, t, *kept)
        found = index.propose(0, [*prompt, *tokens[:t]], min(kmax, len(tokens) - t - 1))
        draft = Draft(0, len(found.tokens), match_length=found.match_length, choices=found.choices)
        _keep(answer.lookups, tokens, t, list(found.tokens), draft)
    return answer


def _keep(
    chains: dict[int, Chain], tokens: Sequence[int], t: int, drafted: list[int], draft: Draft
) -> None:
    """Add the chain of one position, cut where the answer ends: what came after is not known."""
    n = min(len(drafted), len(tokens) - t)
    if n < 1:
        return
    right = common_prefix(drafted[:n], tokens[t:])
    chain = Chain(t, n, right, draft.match_length, draft.choices, draft.p[:n], draft.entropy[:n])
    if draft.s and draft.a and draft.pc and draft.agree:
        chain.s, chain.a = draft.s[:n], draft.a[:n]
        chain.pc, chain.agree = draft.pc[:n], draft.agree[:n]
    chains[t] = chain
