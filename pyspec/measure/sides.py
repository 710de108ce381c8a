"""Answers to one question in many ways, side by side: a sequence each, one decode a round for all of them.

A way is a mode (see modes.py) and, joined by `+`, what else may be tried on it:

    temp:T      the target samples at temperature T
    random      nothing is drafted: at open gates the runner-up is taken at random, as often as the margin rule of
                the same gate took it in the answers before (deviation alone, without a draft's taste)
    thin        the drafted runner-up is taken p2 / p1 of the time, not always
    share:S     relaxed tokens are at most S of the answer's
    record      the gap shrinks with the share of this answer's verified tokens that the target itself chose
    own         what lookup drafts is never relaxed

    strict+fixed:4   margin+fixed:4   margin+thin+fixed:4   margin/gap=0.5+random   plain+temp:0.3

Texts depend on the rule and on what is drafted, not on the clock, so side by side they are what they would be
alone, rounding aside; speed is `pyspec bench`'s to tell.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from pyspec.batch.contexts import Contexts, Models
from pyspec.batch.packing import Layout, padded
from pyspec.drafters import LookupDrafter, Proposal
from pyspec.engine.handle import Gate, Role
from pyspec.engine.models import address
from pyspec.engine.parts import choose_parts
from pyspec.engine.runs import Run
from pyspec.errors import OptionError
from pyspec.measure.modes import Mode, parse_mode
from pyspec.measure.records import TimedAnswer
from pyspec.policy.lengths import FIXED_MAX, Fixed, parse_length
from pyspec.policy.simple import FixedPolicy
from pyspec.rules import Margin
from pyspec.sampling import Sampling, build_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_EXTRAS = ("random", "thin", "share", "record", "own", "temp")
_HINT = "ways look like plain, strict+fixed:4, margin+thin+fixed:4, margin+random, plain+temp:0.3"
_CHUNK = 256


@dataclass(frozen=True)
class Way:
    """One way to answer. extras: by name, with the number behind the colon, 0 where there is none."""

    mode: Mode
    extras: dict[str, float]

    @property
    def name(self) -> str:
        """As it was written."""
        return "+".join(
            [self.mode.name, *(k + (f":{v:g}" if v else "") for k, v in self.extras.items())]
        )

    @property
    def draft_max(self) -> int:
        """Tokens drafted a round."""
        length = parse_length(self.mode.length)
        drafts = self.mode.enabled and "random" not in self.extras and isinstance(length, Fixed)
        return length.k if drafts and isinstance(length, Fixed) else 0

    @property
    def margin(self) -> Margin | None:
        """The margin rule, if that is its rule."""
        return self.mode.rule if isinstance(self.mode.rule, Margin) else None


def parse_way(text: str) -> Way:
    """One way; see the module's text. Raises OptionError."""
    parts = text.strip().lower().split("+")
    extras = [part for part in parts if part.partition(":")[0] in _EXTRAS]
    mode = parse_mode("+".join(part for part in parts if part not in extras))
    if mode.enabled and mode.length == "auto" and "random" not in extras:
        raise OptionError(f"the way {text.strip()[:60]!r} has no fixed length", _HINT)
    found = {}
    for extra in extras:
        name, _, value = extra.partition(":")
        try:
            found[name] = float(value or 0.0)
        except ValueError:
            raise OptionError(f"{value[:20]!r} in {text[:60]!r} is no number", _HINT) from None
    if set(found) - {"temp"} and not isinstance(mode.rule, Margin):
        raise OptionError(f"{text.strip()[:60]!r} has no margin rule to change", _HINT)
    return Way(mode, found)


def parse_ways(text: str) -> list[Way]:
    """Comma-separated ways, each once. Raises OptionError."""
    ways = [parse_way(part) for part in text.split(",") if part.strip()]
    if not ways or len({way.name for way in ways}) < len(ways):
        raise OptionError("name at least one way, and each once", _HINT)
    return ways


@dataclass
class _Side:
    """A way on its sequence. open: emitted tokens at whose row the gate was open; nats: of each token."""

    way: Way
    run: Run
    chain: Any
    random: random.Random
    rate: float
    tokens: list[int] = field(default_factory=list)
    nats: list[float] = field(default_factory=list)
    open: int = 0

    def before(self) -> None:
        """Set the gate for the next round."""
        margin, extras, tally = self.way.margin, self.way.extras, self.run.tally
        if margin is None:
            return
        gate, gap = self.run.gate.gate, margin.gap
        if "thin" in extras:
            gap = min(gap, -math.log(max(self.random.random(), 1e-12)))
        if "record" in extras:
            gap *= (tally.accepted - tally.relaxed + 1) / (tally.verified + 2)
        full = "share" in extras and tally.relaxed >= extras["share"] * len(self.tokens)
        gate.gap, gate.theta = gap, 1.0 if full else margin.theta

    def after(self, ids: Sequence[int], deviated: int | None) -> None:
        """Keep what a round emitted; `deviated` takes the place of the last token."""
        rows = self.run.rows or []
        emitted = [*ids[:-1], deviated] if deviated is not None else ids
        for row, token in zip(rows, emitted):
            self.nats.append(round(nats_of(row, token), 5))
            self.open += _opens(self.way.margin, row)
        self.tokens += emitted
        rows.clear()


class Sides:
    """One target with a sequence for each way. drafting: as `SpeculativeLlama` takes it.

    n_ctx: positions of a sequence. One thread at a time.
    """

    def __init__(
        self,
        model: str,
        drafting: str,
        ways: Sequence[Way],
        *,
        n_ctx: int,
        max_tokens: int,
        **kwargs: Any,
    ) -> None:
        self.ways, self.max_tokens, self.n_ctx = list(ways), max_tokens, n_ctx
        self.models = Models(model, "none", "none", **kwargs)
        self.target = self.models.target
        parts = choose_parts(self.target, drafting, "none")
        self._lookup = _Lookup()
        parts.drafter = self._lookup if parts.drafter is not None else None
        self.models.parts = parts
        cells = padded(n_ctx + len(ways) * (max_tokens + 80))
        self._contexts = Contexts(self.models, len(ways) + 1, n_ctx, Layout(cells), None)
        self._engine, self._loop = self._contexts.engine, self._contexts.loop

    @property
    def draft(self) -> str:
        """What drafts."""
        return self.models.parts.names[0]

    def answer(
        self, prompt: Sequence[int], sampling: Sampling, rates: dict[str, float]
    ) -> list[TimedAnswer]:
        """One turn for each way. rates: of `random` ways, how often an open gate is taken."""
        self._read(prompt)
        sides = [self._side(i, way, prompt, sampling, rates) for i, way in enumerate(self.ways, 1)]
        policy = FixedPolicy(FIXED_MAX)  # each run's own longest draft is the length
        self._lookup.sides = {side.run.seq: side for side in sides}
        live = sides
        while live := [side for side in live if side.run.finish_reason is None]:
            for side in live:
                side.before()
            steps = self._loop.round([side.run for side in live], policy)
            for side, step in zip(live, steps, strict=True):
                side.after([token.id for token in step.tokens], self._deviated(side))
        for seq in range(len(sides) + 1):
            self._engine.set_tokens(seq, ())
        return [self._turn(side, len(prompt)) for side in sides]

    def _read(self, prompt: Sequence[int]) -> None:
        """The prompt into sequence 0 once, and from there to all."""
        last = len(prompt) - 1
        self._engine.set_tokens(0, prompt)
        for role in (Role.TARGET, Role.DRAFT):
            if role is Role.TARGET or (self._loop.draft_model and not self._contexts.reads_states):
                while self._engine.held(role, 0) < last:
                    self._engine.prefill(role, 0, last, _CHUNK)
        for seq in range(1, len(self.ways) + 1):
            self._engine.set_tokens(seq, ())
            self._engine.copy_prefix(0, seq, last)
            self._engine.set_tokens(seq, prompt)

    def _side(
        self, seq: int, way: Way, prompt: Sequence[int], sampling: Sampling, rates: dict[str, float]
    ) -> _Side:
        own = Sampling(temperature=way.extras.get("temp", sampling.temperature), seed=sampling.seed)
        chain = build_chain(own, self.target)
        gate = Gate(way.mode.rule, own.temperature != 0.0)
        room = min(self.max_tokens, self.n_ctx - len(prompt))
        run = Run(seq, list(prompt), gate, room, 0 if chain is None else address(chain.sampler))
        run.draft_max, run.rows = way.draft_max, []
        run.drafting = way.mode.drafting if way.draft_max else "nothing"
        rng = random.Random(f"{sampling.seed} {way.name}")  # noqa: S311 - reproducible, not secret
        return _Side(way, run, chain, rng, rates.get(way.name, 0.0))

    def _deviated(self, side: _Side) -> int | None:
        """The runner-up, where a `random` way takes it in place of what the target chose."""
        run = side.run
        if "random" not in side.way.extras or not run.rows or run.finish_reason == "stop":
            return None
        row = run.rows[-1]
        if not _opens(side.way.margin, row) or side.random.random() >= side.rate:
            return None
        second = int(np.argpartition(row, len(row) - 2)[-2])
        if run.tokens[-1] == second or self._special(second):
            return None
        run.tokens[-1] = second
        run.tally.relaxed += 1
        self._engine.set_tokens(run.seq, run.tokens)
        return second

    def _special(self, token: int) -> bool:
        """Whether it ends a text or controls it: such a token is never taken for another."""
        vocab = self.target._model.vocab  # noqa: SLF001 - llama_cpp has no public way
        ends = llama_cpp.llama_vocab_is_eog(vocab, token)
        return bool(ends or llama_cpp.llama_vocab_is_control(vocab, token))

    def _turn(self, side: _Side, n_prompt: int) -> TimedAnswer:
        if side.chain is not None:
            side.chain.close()
        counts = {**side.run.tally.as_dict(), "open": side.open}
        text = self.target.detokenize(side.tokens).decode("utf-8", "replace")
        return TimedAnswer(
            n_prompt, side.tokens, side.run.finish_reason or "length", 0.0, 0.0, 0.0,
            speculation=counts, text=text, nats=side.nats,
        )  # fmt: skip

    def close(self) -> None:
        """Free contexts and models."""
        self._contexts.close()
        self.models.close()


def _opens(margin: Margin | None, row: npt.NDArray[np.float32]) -> bool:
    """Whether the gate is open at a row of raw logits."""
    if margin is None:
        return False
    second, first = np.partition(row, len(row) - 2)[-2:]
    return bool(first > 0 and second / first > margin.theta and first - second <= margin.gap)


def nats_of(row: npt.NDArray[np.float32], token: int) -> float:
    """-log of the target's probability of a token, by its logits."""
    top = float(row.max())
    return top + math.log(float(np.exp(row - top, dtype=np.float64).sum())) - float(row[token])


class _Lookup(LookupDrafter):
    """Prompt lookup that closes the gate of an `own` way where it drafts."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: dict[int, _Side] = {}

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """See Drafter."""
        found = super().propose(seq, tokens, limit)
        side = self.sides[seq]
        if found.tokens and "own" in side.way.extras:
            side.run.gate.gate.theta = 1.0
        return found
