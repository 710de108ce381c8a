"""What a draft should draw from above temperature 0: tokens a verify by its truncation and its temperature.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, each --every-th one) at temperature --temp with the sampler's
default options, but with each of --top-p in turn, by noise that drafts share, so the text is one whatever drafts. Behind each of
its tokens each draft goes on by up to --length tokens; its rows come from the engine, a head's with states of its own. Of each
row each way to draw is asked: under min-p alone; under top-p, under top-k, under both; where the first token alone fills top-p,
that one, which is what the engine does; always the likeliest; at a factor of the target's temperature. Rounds then follow one
another as in an answer.

A way is shown with its tokens a verify, and with the mean of their ratio to min-p alone over questions, with a 95 % interval.
`unknown` are drafts whose next row no draw of the engine led to; they end there. Nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from math import exp, inf, log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import llama_cpp
import msgspec
import numpy as np
import numpy.typing as npt
from common import arguments, command_line, half_width, keep, page_of

from pyspec import SpeculativeLlama
from pyspec.measure.draws import noise_of
from pyspec.measure.records import ModelFile, commit, machine, model_file
from pyspec.measure.report import code_of, table
from pyspec.noise import Coupling, derive_seed
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import Draft, Place, Plan
from pyspec.profiling.questions import load_questions
from pyspec.sampling import Sampling
from pyspec.store.locate import resolve
from pyspec.text.template import ChatTemplate
from pyspec.tokens import Step, common_prefix

OPTIONS = {
    "temp": 0.8, "top_p": "0.95,0.5,0.1", "length": 4, "every": 3, "tokens": 96, "threads": 1, "out": None,
}  # fmt: skip
HEAD = ("draft", "top-p", "way to draw", "tokens a verify", "times min-p alone", "unknown")
FACTORS = (0.8, 0.9, 1.0, 1.1)

Row = npt.NDArray[np.float32]


class Way(NamedTuple):
    """How a draft draws: at so many times the target's temperature, and under which of its bounds."""

    factor: float = 1.0
    top_k: bool = False
    top_p: bool = False
    alone: bool = False
    likeliest: bool = False

    def draw(self, row: Row, sampling: Sampling, at: int) -> int:
        """The token that is drafted at position `at` of a text."""
        order = _over(row, 1.0 if self.likeliest else sampling.min_p)
        p = np.exp(row[order].astype(np.float64) - float(row[order[0]]))
        if self.top_k:
            order, p = order[: sampling.top_k], p[: sampling.top_k]
        if self.top_p or self.alone:
            mass = p.cumsum() / _whole(row, sampling.top_k if self.top_k else 0)
            n = int(np.searchsorted(mass, sampling.top_p)) + 1
            order = order[: n if self.top_p or n == 1 else None]
        scores = row[order].astype(np.float64) / (self.factor * sampling.temperature)
        return int(order[np.argmax(scores + noise_of(sampling.seed, at, order))])


def _over(row: Row, min_p: float) -> npt.NDArray[np.int32]:
    """Ids that are at least so many times as likely as the first, which comes first."""
    floor = row.max() + np.float32(log(min_p)) if min_p else -inf
    ids = np.flatnonzero(row >= floor)
    return ids[np.argsort(-row[ids], kind="stable")].astype(np.int32)


def _whole(row: Row, top_k: int) -> float:
    """The mass of a row, or of its top_k likeliest tokens, in units of the first's."""
    kept = np.partition(row, -top_k)[-top_k:] if 0 < top_k < len(row) else row
    return float(np.exp(kept - row.max(), dtype=np.float64).sum())


WAYS: Mapping[str, Way] = {
    "min-p alone": Way(),
    "and top-p": Way(top_p=True),
    "and top-k": Way(top_k=True),
    "and both": Way(top_k=True, top_p=True),
    "and the first where it fills top-p": Way(alone=True),
    "always the likeliest": Way(likeliest=True),
    **{f"min-p, temperature x {f:g}": Way(f) for f in FACTORS if f != 1.0},
}
NOW = "min-p alone"


class Found(msgspec.Struct):
    """One way of one draft. lengths: tokens a verify of each question; unknown: drafts cut short."""

    draft: str
    top_p: float
    way: str
    length: float
    lengths: list[float]
    unknown: int


class Truncations(msgspec.Struct):
    """All that was found."""

    command: str
    day: str
    machine: str
    commit: str
    target: ModelFile
    drafts: list[ModelFile]
    found: list[Found]

    def page(self) -> str:
        """Title, what it is, and the table."""
        files = "; ".join(f"{one.name}, sha256 {one.sha256}" for one in (self.target, *self.drafts))
        made = f"Made by `{self.command}`{code_of(self.commit)} on {self.machine}. Files: {files}."
        return page_of("What a draft draws from", __doc__, made, self.table())

    def table(self) -> str:
        """A line a draft, top-p and way."""
        now = {(one.draft, one.top_p): one for one in self.found if one.way == NOW}
        return table(HEAD, [_row(one, now[one.draft, one.top_p]) for one in self.found])


def _row(one: Found, now: Found) -> list[str]:
    logs = [log(a / b) for a, b in zip(one.lengths, now.lengths, strict=True)]
    middle, half = mean(logs), half_width(logs) if len(logs) > 1 else inf
    ratio = f"{exp(middle):.3f} ({exp(middle - half):.3f} to {exp(middle + half):.3f})"
    shown = [f"{one.length:.3f}", "1" if one.way == NOW else ratio, str(one.unknown)]
    return [one.draft, f"{one.top_p:g}", one.way, *shown]


# -- what would be drafted ---------------------------------------------------------------------------------------------


class Asking(LengthPolicy):
    """Before each round of a text that is known, what each way would draft of it; nothing is verified.

    right: by the place in the text, how many tokens of each way's draft are the text's. unknown: by way.
    """

    def __init__(self, llm: SpeculativeLlama, text: Sequence[int], how: Sampling, k: int) -> None:
        super().__init__()
        self._engine, self._text, self._how, self._k = llm.assembly.engine, text, how, k
        self._context, self._n_vocab = llm.assembly.models[0].context, llm.n_vocab()
        self._at = 0
        self.right: dict[int, dict[str, int]] = {}
        self.unknown = dict.fromkeys(WAYS, 0)

    def plan(self, places: Sequence[Place]) -> Plan:
        """One token: `choose` asks for more."""
        (place,) = places
        self._at = place.depth
        return Plan([min(1, place.room)])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Ask every way; verify nothing."""
        wanted = self._text[self._at : self._at + self._k]
        drawn: list[dict[str, int]] = []  # of each row that is known, by way
        how = self._how
        couplings = [Coupling(how.seed, f * how.temperature, how.min_p) for f in (1.0, *FACTORS)]
        for coupling in (*couplings, None):
            if _short(drawn, wanted):
                self._follow(coupling, wanted, drawn)
        self._engine.couple(0, how.coupling)
        for way in _short(drawn, wanted):
            self.unknown[way] += 1
        self.right[self._at] = {way: _right(drawn, wanted, way) for way in WAYS}
        return [0]

    def _follow(
        self, coupling: Coupling | None, wanted: Sequence[int], drawn: list[dict[str, int]]
    ) -> None:
        """Draft with this noise as long as that makes the text, and ask of each new row that it leads to."""
        self._engine.couple(0, coupling)
        self._engine.put_draft(0, ())  # what is left of a draft takes no decode, and has no row
        for i, token in enumerate(wanted):
            self._engine.draft([0], [i + 1])
            view = self._engine.drafted(0)
            if i == len(drawn):
                row, at = self._last_row(), self._at + i
                drawn.append({name: way.draw(row, self._how, at) for name, way in WAYS.items()})
            if view.token[i] != token or not _short(drawn, wanted):
                return

    def _last_row(self) -> Row:
        """The draft's logits behind the token that it read last, [n_vocab]."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, (self._n_vocab,))


def _right(drawn: Sequence[Mapping[str, int]], wanted: Sequence[int], way: str) -> int:
    return common_prefix([row[way] for row in drawn], wanted)


def _short(drawn: Sequence[Mapping[str, int]], wanted: Sequence[int]) -> list[str]:
    """Ways that are right as far as rows are known, and want more."""
    n = len(drawn)
    return [way for way in WAYS if n < len(wanted) and _right(drawn, wanted, way) == n]


class Answer(NamedTuple):
    """What every way would have drafted of one answer; start: where drafts may begin. right, unknown: see `Asking`."""

    start: int
    end: int
    right: Mapping[int, Mapping[str, int]]
    unknown: Mapping[str, int]

    def verifies(self, way: str) -> int:
        """How many the answer takes: each begins behind the token of the target's own that ended the one before it."""
        n, at = 0, self.start
        while at < self.end:
            at += 1 + min(self.right.get(at, {}).get(way, 0), self.end - at - 1)
            n += 1
        return n


def answers(
    llm: SpeculativeLlama, prompts: Sequence[Sequence[int]], top_p: float, options: Any
) -> Iterator[Answer]:
    """Each prompt's text is made plainly, then once more, with what would have been drafted."""
    for prompt in prompts:
        how = Sampling(temperature=options.temp, top_p=top_p, seed=derive_seed(1, *prompt))
        most: dict[str, Any] = {"max_tokens": options.tokens}
        text = [*prompt, *said(llm.steps(prompt, how, drafting="nothing", **most))]
        asking = Asking(llm, text, how, options.length)
        again = [*prompt, *said(llm.steps(prompt, how, drafting="model", policy=asking, **most))]
        end = common_prefix(text, again)
        if asking.right:
            yield Answer(min(asking.right), end, asking.right, asking.unknown)


def said(steps: Iterable[Step]) -> list[int]:
    """An answer's tokens."""
    return [token.id for step in steps for token in step.tokens]


def judge(draft: str, top_p: float, told: Sequence[Answer]) -> list[Found]:
    """Every way over all answers."""
    found = []
    for way in WAYS:
        lengths = [(one.end - one.start) / one.verifies(way) for one in told]
        verifies = sum(one.verifies(way) for one in told)
        length = sum(one.end - one.start for one in told) / verifies
        unknown = sum(one.unknown[way] for one in told)
        found.append(Found(draft, top_p, way, length, lengths, unknown))
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, and with --out keep it."""
    options = arguments(__doc__, words, "target", "questions", "drafts*", **OPTIONS)
    asked = load_questions(Path(options.questions))[:: options.every]
    found = []
    for path in options.drafts:
        with SpeculativeLlama(
            options.target, draft=path, companion="none", n_ctx=2048, n_threads=options.threads,
            n_threads_batch=options.threads, verbose=False,
        ) as llm:  # fmt: skip
            template = ChatTemplate.of(llm)
            prompts = [question.prompt(template) for question in asked]
            prompts = [ids for ids in prompts if len(ids) + options.tokens < 2000]
            for top_p in map(float, options.top_p.split(",")):
                told = list(answers(llm, prompts, top_p, options))
                found += judge(Path(path).stem, top_p, told)
                print(*found[-len(WAYS) :], sep="\n", file=sys.stderr, flush=True)
    results = Truncations(
        command_line("truncation", words),
        datetime.now(timezone.utc).date().isoformat(),
        machine(),
        commit(),
        model_file(resolve(options.target)),
        [model_file(resolve(path)) for path in options.drafts],
        found,
    )
    print(results.table())
    if options.out:
        keep(results, options.out / "truncation.json")


if __name__ == "__main__":
    main()
