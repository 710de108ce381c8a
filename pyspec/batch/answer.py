"""One answer in flight: its text so far, its sampler, and what its listener is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyspec.engine.handle import Gate
from pyspec.engine.models import address
from pyspec.engine.runs import Run
from pyspec.sampling import build_chain
from pyspec.text import TextAssembler
from pyspec.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspec.batch.jobs import Job
    from pyspec.batch.records import Result


@dataclass(frozen=True, slots=True)
class Likely:
    """Log-probabilities at one place: of the token that was emitted, and of the likeliest ones as (id, value)."""

    value: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to an answer; the last one has the result. likely: one a token, where they were asked for."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    likely: list[Likely] = field(default_factory=list)
    result: Result | None = None


@dataclass
class Answering:
    """A job on its sequence. missing: prompt tokens still to be read, the last one aside. seen: tokens whose text is known."""

    job: Job
    run: Run
    text: TextAssembler
    chain: Any
    seen: int
    missing: int = 0
    shown: str = ""

    @classmethod
    def begin(cls, job: Job, target: Any, piece: Callable[[int], bytes]) -> Answering:
        """Nothing is read yet. Raises OptionError or InputError for what cannot be asked of a sampler."""
        text = TextAssembler(piece, job.stop)
        chain = build_chain(job.sampling, target, job.grammar)
        sampled = job.sampling.temperature != 0.0
        run = Run(-1, list(job.tokens), Gate(job.rule, sampled), job.max_tokens)
        run.sampler = 0 if chain is None else address(chain.sampler)
        run.rows = None if job.alternatives is None else []
        return cls(job, run, text, chain, len(job.tokens))

    def place(self, seq: int, kept: int) -> None:
        """It runs on this sequence, whose KV holds its first `kept` tokens."""
        self.run.seq, self.missing = seq, len(self.run.tokens) - 1 - kept

    @property
    def done(self) -> bool:
        """Whether nothing is to come."""
        return self.run.finish_reason is not None or self.text.done

    def emitted(self, tokens: tuple[Token, ...], plain_ms: float, took_ms: float) -> None:
        """Take what a round emitted. plain_ms: what a round without drafts would have taken, 0 for not known."""
        text = self.text.push([token.id for token in tokens])
        self.shown += text
        self.seen += len(tokens)
        if plain_ms:
            self.run.tally.plain_ms += plain_ms * len(tokens)
            self.run.tally.took_ms += took_ms
        likely = self._likely(tokens)
        if self.job.listener is not None:
            self.job.listener(Delta(text, tokens, likely))

    def catch_up(self) -> None:
        """Take what was emitted in a round that failed for others; where it came from is not known any more."""
        lost = self.run.tokens[self.seen :]
        if lost:
            self.emitted(tuple(Token(i, 0, 0.0, i) for i in lost), 0.0, 0.0)  # type: ignore[arg-type]

    def _likely(self, tokens: Sequence[Token]) -> list[Likely]:
        rows = self.run.rows
        if not rows:
            return []
        found = [
            likeliest(row, token.id, self.job.alternatives or 0)
            for row, token in zip(rows, tokens, strict=False)
        ]
        rows.clear()
        return found

    def result(self, reason: str | None) -> Result:
        """The answer; `reason` where it was ended from outside."""
        rest = self.text.finish()
        self.shown += rest
        if rest and self.job.listener is not None:
            self.job.listener(Delta(rest))
        ended = "stop" if self.text.done else self.run.finish_reason or "length"
        tally = self.run.tally
        block = tally.as_dict()
        if tally.speed_against_plain:
            block["speed_against_plain"] = tally.speed_against_plain
        return self.job.result(self.shown, tally.tokens, reason or ended, block)

    def close(self) -> None:
        """Free the sampler."""
        chain, self.chain = self.chain, None
        if chain is not None:
            self.run.sampler = 0
            chain.close()


def likeliest(row: npt.NDArray[np.float32], token: int, n: int) -> Likely:
    """Log-softmax of a row of logits [n_vocab] at `token`, and its n largest values."""
    wide = row.astype(np.float64)
    logs = wide - wide.max()
    logs -= np.log(np.exp(logs).sum())
    top = np.argpartition(-logs, n)[:n] if n else np.empty(0, np.int64)
    top = top[np.argsort(-logs[top], kind="stable")]
    return Likely(float(logs[token]), [(int(i), float(logs[i])) for i in top])
