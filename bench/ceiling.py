"""The most that speculation can reach above temperature 0, with any verification and any policy.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, every --every-th one) at temperature --temp with default sampler
options and --tokens tokens, with noise that drafts share. Each pair is DRAFT=RESULTS: a draft, and a results.json of `pyspec
bench`, whose curves give the time of a decode by its rows, and of a step of the draft. At each place of a text, p is the
distribution that the target's sampler chain leaves to draw from, and q what the same chain leaves of the draft's row, where the
draft's earlier tokens are the text's. The rows are:

- `each token`: the most often that one drafted token can be accepted if the text must stay the target's: sum of min(p, q), which
  is one minus the total variation. No rule that judges token by token does better.
- `whole drafts`: an upper bound for rules that judge a draft as a whole: where the text has these n tokens, the draft has them
  too and they are accepted, with a probability of at most min(1, product of q / p).
- `coupled, exact`: Gumbel noise that both share: sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)) (Daliri, Musco,
  Suresh, arXiv 2408.07978).
- `coupled, drafted`: what the engine drafted with that noise. It samples under min-p only, not under the whole chain.

`accepted at 1` to `4` count tokens whose predecessors in the draft were all accepted. `best length` is the length from 0 to 8
that would have been fastest if every round had used it, and `times plain` its speed. `oracle` knows at each place how many of 8
tokens would be accepted, and drafts the best number: no policy does better with these acceptances and costs. Time outside decodes
is not counted, and drafts are chains, not trees.

The second table asks the reverse: how much a decode of two or more rows may cost, in decodes of one row, to reach a given speed
in times plain. It assumes that all of them cost the same, and that the draft's steps cost what they do. The two figures are for
the best fixed length / for the oracle. Below 1, even rows that cost nothing would not be enough. Nothing is timed here. Lookup is
left out: what it copies takes no draft.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from common import arguments, command_line, keep, page_of
from rows import Behind, Text, open_pair, prompts_of, record

from pyspec import SpeculativeLlama
from pyspec.measure.draws import left
from pyspec.measure.records import ModelFile, commit, machine, model_file
from pyspec.measure.report import Results, code_of, table
from pyspec.profiling.logits import rows_after
from pyspec.sampling.chain import Sampling, build_chain, in_force
from pyspec.sampling.noise import derive_seed
from pyspec.store.locate import resolve
from pyspec.text.tokens import common_prefix

OPTIONS = {
    "temp": 0.8, "every": 10, "tokens": 56, "speeds": "1.15,1.25,1.45", "threads": 1, "out": None,
}  # fmt: skip
LONGEST, SHOWN = 8, 4
COINS, STEPS = 16, 16
"""Random draws for the oracle, and steps of the bisection for a figure."""
WAYS = ("each token", "whole drafts", "coupled, exact", "coupled, drafted")
HEAD = (
    "draft", "verified", *(f"accepted at {i + 1}" for i in range(SHOWN)), "best length", "times plain", "oracle times plain",
)  # fmt: skip

Array = npt.NDArray[np.float64]
Shares = Mapping[int, float]


class Reach(NamedTuple):
    """One way of verifying in one text, a row for each place where a round may begin.

    taken[s, i]: probability that a draft's first i tokens are accepted at place s, given the text. chance[s, i]: that the next
    one is then, however the text goes on.
    """

    taken: Array
    chance: Array


class Costs(NamedTuple):
    """Times in decodes of one row: rounds[k], a round with k drafted tokens; steps[k], the draft's part of it."""

    rounds: Array
    steps: Array

    @classmethod
    def of(cls, path: Path) -> Costs:
        """Read the costs from a page's results."""
        curves = msgspec.json.decode(path.read_bytes(), type=Results).drawn.curves
        target, draft = (np.array(curves[name]) for name in ("target", "draft"))
        steps = draft[: LONGEST + 1] / target[1]
        return cls(target[1 : LONGEST + 2] / target[1] + steps, steps)

    def level(self, rows: float) -> Array:
        """The same, if all rounds of several rows took this much time on the target."""
        return self.steps + np.where(np.arange(LONGEST + 1) > 0, rows, 1.0)


class Found(msgspec.Struct):
    """One way of one pair. most: by speed, what several rows may cost with the best fixed length, and with the oracle."""

    draft: str
    way: str
    accepted: list[float]
    length: int
    fixed: float
    oracle: float
    most: dict[str, tuple[float, float]]


class Pair(msgspec.Struct):
    """A draft. rows: times of decodes of 2, 3, ... rows, in decodes of one; unknown: places where draft rows are missing."""

    file: ModelFile
    results: str
    rows: list[float]
    texts: int
    places: int
    unknown: int


class Ceilings(msgspec.Struct):
    """All results."""

    command: str
    day: str
    machine: str
    commit: str
    target: ModelFile
    pairs: list[Pair]
    found: list[Found]

    def page(self) -> str:
        """The title, a description and the tables."""
        made = f"Made by `{self.command}` on {self.day}{code_of(self.commit)}: {self.machine}."
        target = f"Target {self.target.name}, sha256 {self.target.sha256}."
        pairs = "\n".join(f"- {_told(one)}" for one in self.pairs)
        return page_of(
            "The most that speculation could come to",
            __doc__,
            f"{made} {target}",
            pairs,
            self.tables(),
        )

    def tables(self) -> str:
        """Two tables: acceptance and speed, and what rows may cost."""
        first = []
        for one in self.found:
            shares = [f"{share:.3f}" for share in one.accepted]
            speed = [str(one.length), f"{one.fixed:.3f}", f"{one.oracle:.3f}"]
            first.append([one.draft, one.way, *shares, *speed])
        speeds = list(self.found[0].most)
        second = [
            [one.draft, one.way, *(f"{a:.2f} / {b:.2f}" for a, b in one.most.values())]
            for one in self.found
        ]
        heads = ["draft", "verified", *(f"rows for {speed}" for speed in speeds)]
        return f"{table(HEAD, first)}\n\n{table(heads, second)}"


def _told(pair: Pair) -> str:
    costs = ", ".join(f"{cost:.2f}" for cost in pair.rows)
    unknown = (
        f", {pair.unknown} of which end where rows are not known, taken as accepted"
        if pair.unknown
        else ""
    )
    return (
        f"{pair.file.name}, sha256 {pair.file.sha256}: {pair.texts} texts, {pair.places} places{unknown}. "
        f"Costs of {pair.results}: 2 to {LONGEST + 1} rows are {costs} times one."
    )


# -- acceptance --------------------------------------------------------------------------------------------------------


def least(p: Shares, q: Shares) -> dict[int, float]:
    """By token, the most often that both can draw it."""
    return {x: min(p[x], q[x]) for x in p if x in q}


def coupled(p: Shares, q: Shares) -> dict[int, float]:
    """By token, how often both draw it with shared Gumbel noise."""
    ids = sorted(p.keys() | q.keys())
    both = np.array([[of.get(x, 0.0) for x in ids] for of in (p, q)])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = both[:, None, :] / both[:, :, None]  # [p or q, x, y]
        shares = 1.0 / ratios.max(0).sum(1)
    return {x: float(share) for x, share in zip(ids, shares, strict=True) if x in p and x in q}


def reach(
    p: Sequence[Shares], q: Sequence[Shares], text: Sequence[int], place: Behind
) -> list[Reach]:
    """One place by each of WAYS. text: its tokens from there on, and p and q of each; q may end early."""
    end = float(place.unknown)
    exact, kept = np.full((2, LONGEST), end), np.full((2, LONGEST), end)
    ratio = np.full(LONGEST, end)
    for i, (mine, other, token) in enumerate(zip(p, q, text, strict=False)):
        for rule, shares in enumerate((least(mine, other), coupled(mine, other))):
            exact[rule, i] = sum(shares.values())
            kept[rule, i] = shares.get(token, 0.0) / mine.get(token, 1.0)
        ratio[i] = other.get(token, 0.0) / mine.get(token, 1.0)
    tokens, noise = np.cumprod(kept, axis=1)
    whole = np.minimum.accumulate(np.minimum(np.cumprod(ratio), 1.0))
    drafted = (np.arange(LONGEST) < common_prefix(place.drafted, text)).astype(np.float64)
    taken = [np.concatenate([[1.0], each]) for each in (tokens, whole, noise, drafted)]
    chances = [exact[0], given(taken[1]), exact[1], given(taken[3])]
    return [Reach(*both) for both in zip(taken, chances, strict=True)]


def given(taken: Array) -> Array:
    """The probability that each token of a draft is accepted, given those before it."""
    before, after = taken[..., :-1], taken[..., 1:]
    return np.divide(after, before, out=np.zeros_like(after), where=before > 0.0)


def accepted(texts: Sequence[Reach]) -> list[float]:
    """The shares of first, second, ... tokens of a draft that are accepted, among those after accepted ones."""
    hits = np.sum([(one.taken[:, :-1] * one.chance).sum(0) for one in texts], axis=0)
    asked = np.sum([one.taken[:, :-1].sum(0) for one in texts], axis=0)
    shares = np.divide(hits, asked, out=np.zeros_like(hits), where=asked > 0.0)
    return [float(share) for share in shares[:SHOWN]]


def shares_by(how: Sampling, llm: SpeculativeLlama, rows: Iterable[Any]) -> list[Shares]:
    """The distribution that the sampler chain leaves of each row."""
    found: list[Shares] = []
    with in_force(chain := build_chain(how, llm)):
        for row in rows:
            ids, scaled = left(row, chain, how.temperature)
            shares = np.exp(scaled - scaled.max())
            found.append(dict(zip(ids.tolist(), (shares / shares.sum()).tolist(), strict=True)))
    return found


def reaches(llm: SpeculativeLlama, text: Text, how: Sampling) -> list[list[Reach]]:
    """Each place with more than LONGEST tokens after it, by each of WAYS; the last token is the target's own."""
    answer = text.tokens[text.start :]
    p = shares_by(how, llm, rows_after(llm, text.tokens[: text.start], answer))
    found = []
    for at, place in text.places.items():
        if at + LONGEST < len(text.tokens):
            q = shares_by(how, llm, place.rows)
            ahead = text.tokens[at : at + LONGEST]
            found.append(reach(p[at - text.start :], q, ahead, place))
    return found


# -- speed -------------------------------------------------------------------------------------------------------------


def per_round(texts: Sequence[Array]) -> Array:
    """Tokens a round for each fixed draft length, 0 first. texts: `Reach.taken` of each."""
    tokens, rounds = np.zeros(LONGEST + 1), np.zeros(LONGEST + 1)
    for taken in texts:
        for k in range(LONGEST + 1):
            ends = taken[:, : k + 1] - np.pad(taken[:, 1 : k + 1], ((0, 0), (0, 1)))
            ahead = np.zeros((len(taken) + LONGEST + 1, 2))  # tokens, rounds to the end
            for s in reversed(range(len(taken))):
                ahead[s] = (ends[s] @ np.arange(1, k + 2), 1.0) + ends[s] @ ahead[s + 1 : s + k + 2]
            tokens[k] += ahead[0, 0]
            rounds[k] += ahead[0, 1]
    return tokens / rounds


def counts(taken: Array, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """How many tokens would be accepted at each place, in several random draws: [draw, place]."""
    coins = chance.random((COINS, len(taken) + LONGEST - 1))
    fall = np.lib.stride_tricks.sliding_window_view(coins, LONGEST, axis=1)
    right: npt.NDArray[np.int64] = np.cumprod(fall < given(taken), axis=2).sum(2)
    return right


def holds(texts: Sequence[npt.NDArray[np.int64]], rounds: Array, speed: float) -> bool:
    """Whether a policy that knows the counts at each place reaches this many tokens in a decode's time."""
    lengths, total = np.arange(LONGEST + 1), 0.0
    gains = (lengths + 1.0) / speed - rounds  # time that a round may take, minus what it takes
    for right in texts:
        ahead = np.zeros((right.shape[1] + LONGEST + 1, len(right)))  # best total to the end
        for s in reversed(range(right.shape[1])):
            options = ahead[s + 1 : s + LONGEST + 2] + gains[:, None]
            ahead[s] = np.where(lengths[:, None] <= right[:, s], options, -np.inf).max(0)
        total += ahead[0].sum()
    return total >= 0.0


def largest(fits: Callable[[float], bool]) -> float:
    """The largest number up to LONGEST + 1 that fits, if every smaller number does."""
    low, high = 0.0, LONGEST + 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def judge(
    draft: str, way: str, texts: Sequence[Reach], costs: Costs, speeds: Sequence[str]
) -> Found:
    """Figures of one way over all texts, with one draft's costs."""
    lengths = per_round([one.taken for one in texts])
    chance = np.random.default_rng(1)
    right = [counts(one.taken, chance) for one in texts]
    most = {}
    for speed in map(float, speeds):
        fixed = (lengths / speed - costs.steps)[1:].max()
        oracle = largest(lambda rows, speed=speed: holds(right, costs.level(rows), speed))
        most[f"{speed:g}"] = (float(fixed), oracle)
    fast = lengths / costs.rounds
    oracle = largest(lambda speed: holds(right, costs.rounds, speed))
    return Found(draft, way, accepted(texts), int(fast.argmax()), float(fast.max()), oracle, most)


def measure(pair: str, options: Any) -> tuple[Pair, list[Found]]:
    """Measure a draft, with the costs from a page."""
    draft, _, results = pair.partition("=")
    costs, texts, unknown = Costs.of(Path(results)), [], 0
    with open_pair(options.target, draft, options.threads) as llm:
        for prompt in prompts_of(llm, options):
            how = Sampling(temperature=options.temp, seed=derive_seed(1, *prompt))
            text = record(llm, prompt, how, options.tokens, LONGEST)
            unknown += sum(place.unknown for place in text.places.values())
            if places := reaches(llm, text, how):
                texts.append(
                    [
                        Reach(*map(np.array, zip(*way, strict=True)))
                        for way in zip(*places, strict=True)
                    ]
                )
                print(draft, len(texts), file=sys.stderr, flush=True)
    speeds = options.speeds.split(",")
    ways = zip(WAYS, zip(*texts, strict=True), strict=True)
    found = [judge(Path(draft).stem, way, each, costs, speeds) for way, each in ways]
    rows = (costs.rounds - costs.steps)[1:].tolist()
    n = sum(len(each[0].taken) for each in texts)
    file = model_file(resolve(draft))
    return Pair(file, Path(results).parent.name, rows, len(texts), n, unknown), found


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables; with --out, also store them."""
    options = arguments(__doc__, words, "target", "questions", "pairs*", **OPTIONS)
    measured = [measure(pair, options) for pair in options.pairs]
    results = Ceilings(
        command_line("ceiling", words),
        datetime.now(timezone.utc).date().isoformat(),
        machine(),
        commit(),
        model_file(resolve(options.target)),
        [pair for pair, _ in measured],
        [one for _, found in measured for one in found],
    )
    print(results.tables())
    if options.out:
        keep(results, options.out / "ceiling.json")


if __name__ == "__main__":
    main()
