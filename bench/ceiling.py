"""What speculation could come to at most above temperature 0: no way of verifying and no policy goes beyond.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, each --every-th one) at temperature --temp with the sampler's
default options and --tokens tokens, by noise that drafts share. Each pair is DRAFT=RESULTS: a draft, and a results.json of
`pyspec bench`, whose curves say what a decode of so many rows costs, and a step of the draft. At each place of a text, p is what
the target's chain leaves to draw a token from, q what the same chain leaves of the draft's row, whose earlier tokens are the
text's. Asked are:

- `each token`: how often one drafted token can be accepted at most where the text must stay the target's, sum of min(p, q), which
  is one less the total variation. No rule that goes token by token does better.
- `whole drafts`: a bound of rules that look at a draft as a whole: where the text has these n tokens, the draft has them too and
  they are accepted with a chance of min(1, product of q / p) at most.
- `coupled, exact`: Gumbel noise that both share, sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)) (Daliri, Musco,
  Suresh, arXiv 2408.07978).
- `coupled, drafted`: what the engine drafted with that noise. It draws under min-p, not under all of the chain.

`accepted at 1` to `4` are of tokens all of whose predecessors in the draft were accepted. `best length` is the one of 0 to 8 that
would have been fastest if every round had drafted so many, and `times plain` how fast. `oracle` knows of each place how many of 8
would be accepted, and drafts what is best then: no policy does better with these acceptances and costs. Time outside decodes is
not counted, and drafts are chains, no trees.

The second table turns it round: what a decode of two and more rows may cost, in decodes of one, for a speed of so many times
plain where all of them cost the same, and the draft's steps what they do; by the best fixed length / by the oracle. Below 1 not
even rows that cost nothing would do. Nothing is timed here. Lookup is not in it: what it copies takes no draft.
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
from pyspec.noise import derive_seed
from pyspec.profiling.logits import rows_after
from pyspec.sampling import Sampling, build_chain, in_force
from pyspec.store.locate import resolve
from pyspec.tokens import common_prefix

OPTIONS = {
    "temp": 0.8, "every": 10, "tokens": 56, "speeds": "1.15,1.25,1.45", "threads": 1, "out": None,
}  # fmt: skip
LONGEST, SHOWN = 8, 4
COINS, STEPS = 16, 16
"""Draws of chance for the oracle, and halvings of the interval in which a figure is sought."""
WAYS = ("each token", "whole drafts", "coupled, exact", "coupled, drafted")
HEAD = (
    "draft", "verified", *(f"accepted at {i + 1}" for i in range(SHOWN)), "best length", "times plain", "oracle times plain",
)  # fmt: skip

Array = npt.NDArray[np.float64]
Shares = Mapping[int, float]


class Reach(NamedTuple):
    """One way in one text, a row for each place where a round may begin.

    taken[s, i]: chance that a draft's first i tokens are accepted at place s, as the text goes on. chance[s, i]: that the next
    one is then, however the text goes on.
    """

    taken: Array
    chance: Array


class Costs(NamedTuple):
    """In decodes of one row: rounds[k], one of k drafted tokens; steps[k], the draft's part of it."""

    rounds: Array
    steps: Array

    @classmethod
    def of(cls, path: Path) -> Costs:
        """What was measured with results."""
        curves = msgspec.json.decode(path.read_bytes(), type=Results).drawn.curves
        target, draft = (np.array(curves[name]) for name in ("target", "draft"))
        steps = draft[: LONGEST + 1] / target[1]
        return cls(target[1 : LONGEST + 2] / target[1] + steps, steps)

    def level(self, rows: float) -> Array:
        """The same where all rounds of several rows take so much on the target."""
        return self.steps + np.where(np.arange(LONGEST + 1) > 0, rows, 1.0)


class Found(msgspec.Struct):
    """One way of one pair. most: by a speed, what several rows may cost by the best fixed length, and by the oracle."""

    draft: str
    way: str
    accepted: list[float]
    length: int
    fixed: float
    oracle: float
    most: dict[str, tuple[float, float]]


class Pair(msgspec.Struct):
    """A draft with its costs. rows: of decodes of 2, 3, ... rows, in decodes of one; unknown: places whose rows end too soon."""

    file: ModelFile
    results: str
    rows: list[float]
    texts: int
    places: int
    unknown: int


class Ceilings(msgspec.Struct):
    """All that was found."""

    command: str
    day: str
    machine: str
    commit: str
    target: ModelFile
    pairs: list[Pair]
    found: list[Found]

    def page(self) -> str:
        """Title, what it is, and the tables."""
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
        """Acceptance and speed, then what rows may cost."""
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
    """By token, how often both have it at most."""
    return {x: min(p[x], q[x]) for x in p if x in q}


def coupled(p: Shares, q: Shares) -> dict[int, float]:
    """By token, how often both have it by Gumbel noise that they share."""
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
    """The chance of each token of a draft, given those before it."""
    before, after = taken[..., :-1], taken[..., 1:]
    return np.divide(after, before, out=np.zeros_like(after), where=before > 0.0)


def accepted(texts: Sequence[Reach]) -> list[float]:
    """The share of first, second, ... tokens of a draft that are accepted, of those that stand behind accepted ones."""
    hits = np.sum([(one.taken[:, :-1] * one.chance).sum(0) for one in texts], axis=0)
    asked = np.sum([one.taken[:, :-1].sum(0) for one in texts], axis=0)
    shares = np.divide(hits, asked, out=np.zeros_like(hits), where=asked > 0.0)
    return [float(share) for share in shares[:SHOWN]]


def shares_by(how: Sampling, llm: SpeculativeLlama, rows: Iterable[Any]) -> list[Shares]:
    """What the target's chain leaves of each row to draw from."""
    found: list[Shares] = []
    with in_force(chain := build_chain(how, llm)):
        for row in rows:
            ids, scaled = left(row, chain, how.temperature)
            shares = np.exp(scaled - scaled.max())
            found.append(dict(zip(ids.tolist(), (shares / shares.sum()).tolist(), strict=True)))
    return found


def reaches(llm: SpeculativeLlama, text: Text, how: Sampling) -> list[list[Reach]]:
    """Each place with more than LONGEST tokens behind it, by each of WAYS; the target says the last."""
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
    """Tokens a round by the fixed length of drafts, 0 first; texts: what is taken in each."""
    tokens, rounds = np.zeros(LONGEST + 1), np.zeros(LONGEST + 1)
    for taken in texts:
        for k in range(LONGEST + 1):
            ends = taken[:, : k + 1] - np.pad(taken[:, 1 : k + 1], ((0, 0), (0, 1)))
            ahead = np.zeros((len(taken) + LONGEST + 1, 2))  # from a place on: tokens, rounds
            for s in reversed(range(len(taken))):
                ahead[s] = (ends[s] @ np.arange(1, k + 2), 1.0) + ends[s] @ ahead[s + 1 : s + k + 2]
            tokens[k] += ahead[0, 0]
            rounds[k] += ahead[0, 1]
    return tokens / rounds


def counts(taken: Array, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """How many tokens would be accepted at each place, in some draws of chance: [draw, place]."""
    coins = chance.random((COINS, len(taken) + LONGEST - 1))
    fall = np.lib.stride_tricks.sliding_window_view(coins, LONGEST, axis=1)
    right: npt.NDArray[np.int64] = np.cumprod(fall < given(taken), axis=2).sum(2)
    return right


def holds(texts: Sequence[npt.NDArray[np.int64]], rounds: Array, speed: float) -> bool:
    """Whether who knows the counts of each place makes so many tokens in a decode's time."""
    lengths, total = np.arange(LONGEST + 1), 0.0
    gains = (lengths + 1.0) / speed - rounds  # time that a round may take, less what it takes
    for right in texts:
        ahead = np.zeros((right.shape[1] + LONGEST + 1, len(right)))  # the most from a place on
        for s in reversed(range(right.shape[1])):
            options = ahead[s + 1 : s + LONGEST + 2] + gains[:, None]
            ahead[s] = np.where(lengths[:, None] <= right[:, s], options, -np.inf).max(0)
        total += ahead[0].sum()
    return total >= 0.0


def largest(fits: Callable[[float], bool]) -> float:
    """The largest number up to LONGEST + 1 that fits, where every smaller one does."""
    low, high = 0.0, LONGEST + 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def judge(
    draft: str, way: str, texts: Sequence[Reach], costs: Costs, speeds: Sequence[str]
) -> Found:
    """One way over all texts, on one draft's costs."""
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
    """A draft, with costs of a page."""
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
    """Print the tables, and with --out keep them."""
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
