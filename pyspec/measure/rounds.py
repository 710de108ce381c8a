"""Recorded rounds: what would be drafted from every position of a greedy answer, as bench/replay.py plays them.

Chains go on after the first mismatch as the drafter would (a policy sees those tokens' p before it knows), and stop early
only at the drafter's own end, e.g. an end-of-generation token, or where the answer ends. A round at position t that accepts
m tokens is followed by one at t + m + 1, so `matched` may be all that decides how far it goes.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from pyspec.drafters import LookupDrafter
from pyspec.errors import InputError
from pyspec.llama import SpeculativeLlama
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import LOOKUP, Draft, Place, Plan
from pyspec.sampling import Sampling
from pyspec.tokens import common_prefix


class Chain(msgspec.Struct, omit_defaults=True):
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

    def draft(self, n: int, companion: bool = True) -> Draft:
        """The first n tokens as a policy sees them, those of a companion if it looked."""
        if self.match_length:
            return Draft(0, n, source=LOOKUP, match_length=self.match_length, choices=self.choices)
        out = Draft(0, n, self.p[:n], self.h[:n])
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


def save_rounds(path: Path, answers: Sequence[Answer]) -> None:
    """Write answers as compressed msgpack."""
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(answers)))


def load_rounds(path: Path) -> list[Answer]:
    """Read what `save_rounds` wrote. Raises InputError where it is no such file."""
    try:
        return msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=list[Answer])
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise InputError(f"{path} is no file of `pyspec profile --rounds`: {error}") from None


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
        chain.pc, chain.agree = draft.pc[:n], [bool(one) for one in draft.agree[:n]]
    chains[t] = chain
