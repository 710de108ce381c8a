"""How a draft should sample above temperature 0: tokens a verify by its truncation and its temperature.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, every --every-th one) at temperature --temp with default sampler
options, but with each of --samplers in turn. Its noise is shared with drafts, so the text is the same with any draft. After each
of its tokens each draft continues by up to --length tokens; its rows come from the engine, a head's with its own states. Each way
to sample is tried on each row: under min-p alone; under top-p, under top-k, under both; the first token if it alone fills top-p,
which is what the engine does; always the likeliest; at a factor of the target's temperature; by the target's whole chain, with
its penalties, DRY, XTC and dynamic temperature. Rounds then follow one another as in an answer.

The table shows each way's tokens a verify, and the mean over questions of their ratio to min-p alone, with a 95 % interval.
`unknown` counts drafts that end early because their next row is not known. Nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
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
from rows import Row, Text, open_pair, prompts_of, record

from pyspec import SpeculativeLlama
from pyspec.measure.draws import noise_of, top_two
from pyspec.measure.records import ModelFile, commit, machine, model_file
from pyspec.measure.report import code_of, table
from pyspec.sampling.chain import Sampling, build_chain, in_force
from pyspec.sampling.noise import derive_seed
from pyspec.store.locate import resolve
from pyspec.text.tokens import common_prefix

OPTIONS = {
    "temp": 0.8, "length": 4, "every": 3, "tokens": 96, "threads": 1, "out": None,
    "samplers": "top_p=0.95,top_p=0.1,dynatemp_range=0.5,xtc_probability=0.5,dry_multiplier=0.8,repeat_penalty=1.1",
}  # fmt: skip
HEAD = ("draft", "sampler", "way to draw", "tokens a verify", "times min-p alone", "unknown")
FACTORS = (0.8, 0.9, 1.0, 1.1)


class Way(NamedTuple):
    """How a draft samples: the factor on the target's temperature, and which of its truncations apply."""

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
    """Ids whose probability is at least min_p times that of the likeliest, sorted, likeliest first."""
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
NOW, CHAIN = "min-p alone", "the target's whole chain"
FEW = (NOW, "and the first where it fills top-p", CHAIN)
"""The ways that are tried if the target's sampler does more than truncate."""


class Found(msgspec.Struct):
    """One way of one draft. lengths: tokens a verify of each question; unknown: drafts cut short."""

    draft: str
    sampler: str
    way: str
    length: float
    lengths: list[float]
    unknown: int


class Truncations(msgspec.Struct):
    """All results."""

    command: str
    day: str
    machine: str
    commit: str
    target: ModelFile
    drafts: list[ModelFile]
    found: list[Found]

    def page(self) -> str:
        """The title, a description and the table."""
        files = "; ".join(f"{one.name}, sha256 {one.sha256}" for one in (self.target, *self.drafts))
        made = f"Made by `{self.command}`{code_of(self.commit)} on {self.machine}. Files: {files}."
        return page_of("What a draft draws from", __doc__, made, self.table())

    def table(self) -> str:
        """A line for each draft, sampler and way."""
        now = {(one.draft, one.sampler): one for one in self.found if one.way == NOW}
        return table(HEAD, [_row(one, now[one.draft, one.sampler]) for one in self.found])


def _row(one: Found, now: Found) -> list[str]:
    logs = [log(a / b) for a, b in zip(one.lengths, now.lengths, strict=True)]
    middle, half = mean(logs), half_width(logs) if len(logs) > 1 else inf
    ratio = f"{exp(middle):.3f} ({exp(middle - half):.3f} to {exp(middle + half):.3f})"
    shown = [f"{one.length:.3f}", "1" if one.way == NOW else ratio, str(one.unknown)]
    return [one.draft, one.sampler, one.way, *shown]


# -- what would be drafted ---------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What every way would have drafted in one answer, between two lengths of its text.

    right: by the text's length, how many tokens of each way's draft are the text's. unknown: of each way, drafts cut short.
    """

    start: int
    end: int
    right: Mapping[int, Mapping[str, int]]
    unknown: Mapping[str, int]

    def verifies(self, way: str) -> int:
        """How many verifies the answer takes: each begins after the target's own token that ended the one before it."""
        n, at = 0, self.start
        while at < self.end:
            at += 1 + min(self.right.get(at, {}).get(way, 0), self.end - at - 1)
            n += 1
        return n


def drawn(
    llm: SpeculativeLlama, text: Text, how: Sampling, ways: Sequence[str]
) -> dict[int, list[dict[str, int]]]:
    """The token that each way draws from each row, by the place where the draft begins."""
    found: dict[int, list[dict[str, int]]] = {at: [] for at in text.places}
    with in_force(chain := build_chain(how, llm, tokens=text.tokens[: text.start])):
        for at in range(text.start, len(text.tokens)):
            for begin, each in found.items():  # the chain has seen only the text before `at`
                rows = text.places[begin].rows
                if begin + len(each) == at and len(each) < len(rows):
                    row = rows[len(each)]
                    own = {CHAIN: top_two(row, chain, how.coupling, at).first}
                    each.append(own | {w: WAYS[w].draw(row, how, at) for w in ways if w in WAYS})
            llama_cpp.llama_sampler_accept(chain.sampler, text.tokens[at])
    return found


def answer(
    llm: SpeculativeLlama, text: Text, how: Sampling, ways: Sequence[str], length: int
) -> Answer:
    """How many tokens each way drafts right, from each place."""
    right: dict[int, dict[str, int]] = {}
    unknown = dict.fromkeys(ways, 0)
    for at, rows in drawn(llm, text, how, ways).items():
        wanted = text.tokens[at : at + length][
            : len(text.tokens) - 1 - at
        ]  # the last token is the target's own
        right[at] = {way: common_prefix([row[way] for row in rows], wanted) for way in ways}
        for way, n in right[at].items():
            unknown[way] += n == len(rows) < len(wanted)
    return Answer(min(right), len(text.tokens), right, unknown)


def judge(draft: str, sampler: str, told: Sequence[Answer]) -> list[Found]:
    """Figures of every way over all answers."""
    found = []
    for way in told[0].unknown:
        lengths = [(one.end - one.start) / one.verifies(way) for one in told]
        verifies = sum(one.verifies(way) for one in told)
        length = sum(one.end - one.start for one in told) / verifies
        unknown = sum(one.unknown[way] for one in told)
        found.append(Found(draft, sampler, way, length, lengths, unknown))
    return found


def answers(
    llm: SpeculativeLlama, prompts: Sequence[Sequence[int]], sampler: str, options: Any
) -> Iterator[Answer]:
    """What would have been drafted in each prompt's answer, if it has places for drafts."""
    name, _, value = sampler.partition("=")
    ways = [*WAYS, CHAIN] if name == "top_p" else FEW
    for prompt in prompts:
        own: dict[str, Any] = {"temperature": options.temp, name: float(value)}
        how = Sampling(seed=derive_seed(1, *prompt), **own)
        text = record(llm, prompt, how, options.tokens, options.length)
        if text.places:
            yield answer(llm, text, how, ways, options.length)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "target", "questions", "drafts*", **OPTIONS)
    found = []
    for path in options.drafts:
        with open_pair(options.target, path, options.threads) as llm:
            prompts = prompts_of(llm, options)
            for sampler in options.samplers.split(","):
                told = list(answers(llm, prompts, sampler, options))
                each = judge(Path(path).stem, sampler, told)
                print(*each, sep="\n", file=sys.stderr, flush=True)
                found += each
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
