"""The length policy on pairs that it was not made on: synthetic texts on several cost curves.

Each cell is one acceptance (0.3 to 0.95) and one draft cost (0.05 to 0.4 of a target step): 12 answers of 200 tokens, prompts of
100 tokens that the draft has to read first, times with 3 % noise. The policy (`auto`) is compared with plain decoding and with
the best fixed length from 0 to 16, chosen by hindsight on the same rounds. Fresh: the target's rows as a process times them
before it answers, and no knowledge of the draft. Profiled: the true curve, and acceptance as learned on other texts of the same
kind. The oracle knows before it drafts what will be accepted. The informed policy knows all that can be known: the costs, and
before it drafts a token how often tokens of its probability are accepted. Python's own time counts in `first` and `warm`. The
whole run takes three minutes on two cores.

Kinds of texts: `alike`; `differ`, where the log-odds of acceptance vary around the cell's with a standard deviation of 1; `long`,
with prompts of 750 tokens and answers of 64; `first`, answers of 12 to 60 tokens, each by a process of its own that knows
nothing, and `warm`, where ten such answers taught it before; `turn`, where the policy has seen 12 texts of acceptance 0.25
before; `head`, where the draft reads the target's states: at most the last 128 tokens of its prompt, and each accepted token once
more; `deep`, where it does so behind 4,000 tokens, which double the time of a row; `busy`, where 3 rounds in 100 take 30 to 100
ms longer; `four` and `sixteen`, where so many share each decode. `--parts` leaves out one part of the policy after
the other, in another table.
`--held-out`: curves, acceptances, draft costs and seeds that were not used to choose any constant of the policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, lru_cache
from itertools import product
from math import exp
from typing import NamedTuple

from common import arguments, publish
from measure.parts import PARTS, RECORDED, without
from measure.questions import grouped
from measure.report import table
from measure.simulate import (
    NO_ASIDE,
    Answer,
    Costs,
    Player,
    Times,
    fixed_speed,
    fresh_curve,
    oracle_speed,
    planted,
    reading_ms,
    reread_ms,
)
from measure.speeds import geomean

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import expand
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.simple import FixedPolicy
from pyspec.draft.stopping import best_length, survivals
from pyspec.draft.types import LONGEST, TABLE_BINS, table_bin

ACCEPTANCES = (0.3, 0.5, 0.7, 0.85, 0.95)
DRAFT_COSTS = (0.05, 0.1, 0.2, 0.4)
ANSWERS = 12
ASIDE = (0.2, 0.4)
"""Ms outside decodes: of rounds of the default target without and with a draft."""
HEAD = ("curve", "start", "geometric mean of the best", "worst cell", "cells under 0.95", "worst run of the best",
        "worst run of plain", "of the oracle", "informed of the oracle")  # fmt: skip
PAGES = {
    "README": "The length policy on synthetic texts",
    "held-out": "The length policy on curves and texts not used to choose it",
    "parts": "What the parts of the policy are worth",
}


class Kind(NamedTuple):
    """Texts of a cell; see `Answer`."""

    mixed: float = 0.0  # how much they differ in acceptance: see `_about`
    tokens: int = 200
    least: int = 0  # tokens of the shortest; 0: all are as long
    prompt: int = 100
    before: float = 0.0  # acceptance of twelve texts before them; 0: there are none
    window: int = 0
    alone: bool = False  # each is played by a policy of its own, and Python's time counts
    taught: int = 0  # texts of the same kind that taught what that policy begins with
    deeper: float = 0.0  # ms that each position of context adds to a row
    stalls: float = 0.0  # share of rounds in which the machine does something else
    together: int = 1  # texts that share each decode


KINDS: Mapping[str, Kind] = {
    "alike": Kind(),
    "differ": Kind(mixed=1.0),
    "long": Kind(tokens=64, prompt=750),
    "turn": Kind(before=0.25),
    "head": Kind(window=128),
    "first": Kind(mixed=0.5, tokens=60, least=12, prompt=40, alone=True),
    "warm": Kind(mixed=0.5, tokens=60, least=12, prompt=40, alone=True, taught=10),
    "deep": Kind(prompt=4000, window=128, deeper=0.0025),
    "busy": Kind(stalls=0.03),
    "four": Kind(mixed=0.5, tokens=100, together=4),
    "sixteen": Kind(mixed=0.5, tokens=100, together=16),
}
ORACLE = [name for name, kind in KINDS.items() if kind.together == 1 and not kind.deeper]
"""Kinds whose best lengths are known by hindsight."""

TINY = {1: 1.0, 2: 1.4, 4: 1.9, 8: 2.8, 16: 4.6, 64: 15.0}
"""Times of a small model's rows on a processor, in times of one row."""
TINY_ON_A_CARD = {1: 1.0, 16: 1.15, 64: 1.6}
"""The same on a card, which no small model fills."""


def stairs(times: str) -> dict[int, float]:
    """Times of 1, 2, ... rows."""
    return {rows: float(time) for rows, time in enumerate(times.split(), 1)}


class Experts(NamedTuple):
    """A mixture of experts. held: by a layer; used: by a row; share: of the bytes that a row reads."""

    held: int
    used: int
    share: float


def with_experts(times: Sequence[float], experts: Experts) -> list[float]:
    """A curve of a mixture from that of a model whose rows share all weights.

    Rows choose experts as if independently, and each chosen one is read: on a model of 64 experts, 8 of them used, this is within
    16 % of what 3 to 8 rows were measured to take.
    """
    held, used, share = experts
    read = [times[1] * held / used * (1.0 - (1.0 - used / held) ** n) for n in range(len(times))]
    return [t + share * max(0.0, more - t) for t, more in zip(times, read)]


class Machine(NamedTuple):
    """Times of a target's rows, in times of one, and whether they are a card's."""

    points: Mapping[int, float]
    card: bool = False


Q4_K_M = {1: 1, 2: 1.44, 3: 1.68, 4: 1.96, 5: 2.63, 6: 2.85, 8: 3.04, 12: 4.00, 16: 4.94}
CURVES: Mapping[str, Machine] = {
    # the first three: two AVX-512 cores with a 135M model, flash attention on, 64 positions of context
    "Q4_1": Machine(
        {1: 1, 2: 1.78, 3: 2.17, 4: 2.65, 5: 3.30, 6: 3.77, 8: 4.25, 12: 6.17, 16: 7.75}
    ),
    "Q4_K_M": Machine(Q4_K_M),
    "BF16": Machine(
        {1: 1, 2: 1.68, 3: 1.89, 4: 2.12, 5: 2.21, 6: 2.32, 8: 2.61, 12: 3.12, 16: 3.67}
    ),
    "GPU": Machine({1: 1.0, 16: 1.15, 64: 1.6}, card=True),
    "7B on CPU": Machine({1: 1.0, 2: 1.07, 4: 1.2, 8: 1.6, 16: 2.8, 64: 10.0}),
    "steps of 4": Machine(stairs("1 1.5 1.9 1.45 2 2.4 2.8 2.1 2.7 2.8 2.9 3 3.2 3.4 3.6 3.8")),
    "flat on Metal": Machine({1: 1.0, 8: 1.15, 9: 2.1, 16: 2.4, 64: 6.0}, card=True),
}
MIXTURE = Experts(64, 8, 0.85)
HELD_OUT: Mapping[str, Machine] = {
    "tiles of 4": Machine(stairs("1 1.6 2.2 1.3 2.1 2.7 3.3 2 2.8 3.4 4 2.8 3.5 4.1 4.7 3.6")),
    "tiles of 8": Machine(stairs("1 1.9 2.3 2.5 2.9 3.1 3.4 2 2.9 3.2 3.5 3.8 4 4.3 4.5 3.4")),
    "flat to 8": Machine({1: 1.0, 8: 1.12, 9: 3.0, 16: 3.3, 64: 6.5}, card=True),
    "flat to 4 on Metal": Machine({1: 1.0, 4: 1.1, 5: 1.9, 8: 2.2, 16: 3.9, 64: 12.0}, card=True),
    "13B on CPU": Machine({1: 1.0, 2: 1.04, 4: 1.12, 8: 1.35, 16: 2.3, 64: 8.0}),
    "expensive from 2 on": Machine({1: 1.0, 2: 2.0, 4: 3.6, 8: 5.5, 16: 9.5, 64: 34.0}),
    # measured: results/wide-good-bf16, results/wide-good-q8_0
    "H100 BF16": Machine({1: 1.0, 2: 1.19, 4: 1.24, 8: 1.29, 9: 1.35, 16: 1.38}, card=True),
    "H100 Q8_0": Machine({1: 1.0, 3: 1.05, 4: 1.11, 8: 1.39, 9: 1.71, 16: 1.75}, card=True),
    # not measured: eight cores that read weights as two do and compute four times as much; rows that choose 8 of 64 experts
    "8 cores": Machine({n: max(1.0, 0.12 * n) + 0.02 * (n - 1) for n in (1, 2, 4, 8, 9, 16, 64)}),
    "mixture": Machine(dict(enumerate(with_experts(expand(Q4_K_M), MIXTURE)[1:], 1))),
}


KNOWN = {**CURVES, **HELD_OUT}
SEEN = (CURVES, ACCEPTANCES, DRAFT_COSTS, 0)
UNSEEN = (HELD_OUT, (0.35, 0.55, 0.75, 0.9), (0.06, 0.12, 0.25), 700)
"""Curves, acceptances, draft costs and first seed: SEEN may be used to choose constants, UNSEEN judges them."""


class Cell(NamedTuple):
    """One run of the policy: curve, acceptance, draft cost, and what the policy knows at its start."""

    curve: str
    acceptance: float
    cost: float
    seed: int
    known: bool
    without: str = ""
    kind: str = "alike"


class Result(NamedTuple):
    """The policy's speed over the best fixed length, plain decoding and the oracle; and the informed policy's over the oracle."""

    best: float
    plain: float
    oracle: float
    informed: float


def costs_of(curve: str, cost: float, companion: float = 1.0, deeper: float = 0.0) -> Costs:
    """The true costs of a cell, with one row of the target in 10 ms. companion: its step in steps of the draft."""
    points, card = KNOWN[curve]
    tiny = TINY_ON_A_CARD if card else TINY
    draft, other = (Times(tiny, 10.0 * cost * share) for share in (1.0, companion))
    return Costs(Times(points, 10.0), draft, other, deeper)


@lru_cache(maxsize=64)
def texts_of(acceptance: float, seed: int, kind: str, n: int = ANSWERS) -> list[Answer]:
    """Texts of a cell's kind."""
    rng, how = random.Random(f"{acceptance} {seed}"), KINDS[kind]  # noqa: S311 - reproducible, not secret
    texts = []
    for _ in range(n):
        tokens = rng.randint(how.least, how.tokens) if how.least else how.tokens
        about = _about(acceptance, how.mixed, rng)
        texts.append(planted(rng, about, tokens, how.prompt, window=how.window))
    return texts


def _about(acceptance: float, mixed: float, rng: random.Random) -> float:
    """A text's own acceptance: its log-odds vary around the cell's with a standard deviation of `mixed`."""
    if not mixed:
        return acceptance
    return 1.0 / (1.0 + (1.0 / acceptance - 1.0) * exp(rng.gauss(0.0, mixed)))


def _costs(cell: Cell) -> Costs:
    return costs_of(cell.curve, cell.cost, deeper=KINDS[cell.kind].deeper)


def policy_of(cell: Cell) -> GoodputPolicy:
    """The policy as it starts."""
    costs = _costs(cell)
    curve = fresh_curve(costs, (cell.cost, cell.cost), cell.seed, KNOWN[cell.curve].card)
    learned = Acceptance()
    if cell.known:
        learned, curve = _taught(cell, costs), costs.curve()
    return GoodputPolicy(curve, learned)


def _taught(cell: Cell, costs: Costs) -> Acceptance:
    """What a profile knows of the draft: learned from four other answers that were drafted in every round."""
    policy = GoodputPolicy(costs.curve(), auto=False)
    Player(policy, costs).play(texts_of(cell.acceptance, 1000 + cell.seed, cell.kind, 4))
    return policy.learned


def run(cell: Cell) -> Result:
    """Play one cell."""
    with without(cell.without):
        speed = _speed(cell)
    *fixed, informed, oracle = baselines(cell._replace(known=False, without=""))
    return Result(speed / max(fixed), speed / fixed[0], speed / oracle, informed / oracle)


def _speed(cell: Cell) -> float:
    """Tokens per ms of the policy."""
    how, costs = KINDS[cell.kind], _costs(cell)
    texts, policy = _texts(cell), policy_of(cell)
    earlier = 500 + cell.seed
    if how.before:
        Player(policy, costs, earlier).play(texts_of(how.before, earlier, cell.kind))
    if not how.alone:
        stalls = _stalls(how.stalls, cell.seed)
        return Player(policy, costs, cell.seed, stalls).play(texts, how.together).speed
    tokens = ms = 0.0
    if how.taught:
        taught = texts_of(cell.acceptance, earlier, cell.kind, how.taught)
        Player(policy, costs, earlier).play(taught)
    for seed, text in enumerate(texts, cell.seed):
        next_ = _next_process(cell, policy)
        played = Player(next_, costs, seed, aside=ASIDE).play([text])
        tokens, ms = tokens + played.tokens, ms + played.ms
    return tokens / ms


def _texts(cell: Cell) -> list[Answer]:
    n = KINDS[cell.kind].together
    return texts_of(cell.acceptance, cell.seed, cell.kind, *([n] if n > ANSWERS else []))


def _stalls(share: float, seed: int) -> dict[int, float]:
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return {i: rng.uniform(30.0, 100.0) for i in range(3000) if rng.random() < share}


def _next_process(cell: Cell, policy: GoodputPolicy) -> GoodputPolicy:
    """A policy as another process begins: with what this one would keep."""
    fresh = policy_of(cell)
    if KINDS[cell.kind].taught:
        curve, seen = policy.curve, policy.experience()
        fresh.curve.begin_with(curve.target.seen(), curve.draft.seen())
        fresh.learned.taught(seen.calibration, seen.lookup)
        fresh.begin_with(seen)
    return fresh


@cache
def baselines(cell: Cell) -> list[float]:
    """Tokens per ms of the fixed lengths 0 to 16, of the informed policy, and of the oracle."""
    texts, costs, together = _texts(cell), _costs(cell), KINDS[cell.kind].together
    if cell.kind not in ORACLE:
        ks = (0, 1, 2, 3, 4, 6, 8, 11, 16)
        return [*(Player(FixedPolicy(k), costs).play(texts, together).speed for k in ks), 1.0, 1.0]
    aside = ASIDE if KINDS[cell.kind].alone else NO_ASIDE
    fixed = [fixed_speed(texts, costs, k, aside) for k in range(17)]
    return [*fixed, informed_speed(texts, costs), oracle_speed(texts, costs)]


def informed_speed(texts: Sequence[Answer], costs: Costs) -> float:
    """Tokens per ms of a policy that knows all that can be known: the costs, and each token's chance before it is drafted.

    A chance is the share of accepted tokens among those of these texts to which the draft gave a like probability: what is left
    to luck is whether this token is one of them. Per text with the draft model or without, whichever is faster; no lookup.
    """
    chances, plain = _accepted_shares(texts), 1.0 / costs.target(1)
    speed, tokens = plain, sum(text.length for text in texts)
    for _ in range(4):  # the price of a ms is the speed itself
        with_model = [_informed_ms(text, costs, chances, speed) for text in texts]
        least = (min(ms, text.length / plain) for ms, text in zip(with_model, texts, strict=True))
        speed = tokens / sum(least)
    return speed


def _accepted_shares(texts: Sequence[Answer]) -> list[float]:
    """Chance of acceptance by bin of the draft's probability."""
    seen, hits = [1.0] * TABLE_BINS, [0.5] * TABLE_BINS
    for chain in (chain for text in texts for chain in text.models.values()):
        for i, p in enumerate(chain.p[: chain.seen]):
            seen[table_bin(p)] += 1.0
            hits[table_bin(p)] += i < chain.matched
    return [h / n for h, n in zip(hits, seen, strict=True)]


def _informed_ms(text: Answer, costs: Costs, chances: Sequence[float], price: float) -> float:
    step = costs.draft(1)
    rounds = [costs.target(k + 1) + k * step for k in range(LONGEST + 1)]
    again = [reread_ms(text, costs, k) for k in range(LONGEST + 1)]
    ms, t = reading_ms(text, costs) + rounds[0], 1
    while t < text.length:
        chain = text.model(t)
        likely = [chances[table_bin(p)] for p in chain.p[: min(LONGEST, text.length - t - 1)]]
        worth = 1.0 - price * again[2] / 2.0
        k = best_length([worth * s for s in survivals(likely)], rounds, price)
        right = min(k, chain.matched)
        ms, t = ms + rounds[k] + again[right], t + 1 + right
    return ms


Results = dict["Cell", Result]


def report(found: Results) -> str:
    """A Markdown table, a line for each curve and start."""
    rows = []
    for (curve, known), cells in grouped(found, lambda cell: (cell.curve, cell.known)).items():
        mine, seeds = [found[cell] for cell in cells], grouped(cells, lambda c: c._replace(seed=0))
        means = {cell: geomean([found[one].best for one in ones]) for cell, ones in seeds.items()}
        worst = min(means, key=lambda cell: means[cell])
        figures = (
            min(r.best for r in mine), min(r.plain for r in mine),
            geomean([r.oracle for r in mine]), geomean([r.informed for r in mine]),
        )  # fmt: skip
        rows.append([
            curve, "profiled" if known else "fresh", f"{geomean([r.best for r in mine]):.3f}",
            f"{means[worst]:.3f} ({worst.acceptance:g}, {worst.cost:g})", str(sum(m < 0.95 for m in means.values())),
            *(f"{figure:.3f}" for figure in figures),
        ])  # fmt: skip
    return table(HEAD, rows)


def by_kind(found: Results) -> str:
    """A table for each kind of text."""
    kinds = grouped(found, lambda cell: cell.kind).items()
    return "\n\n".join(f"## {kind}\n\n{report({c: found[c] for c in cells})}" for kind, cells in kinds)  # fmt: skip


Played = list[tuple[float, float]]
"""The mean and the worst run, for each way to play."""


def parts(ways: Iterable[str], left_out: Iterable[str], play: Callable[[str], Played]) -> str:
    """A line for each part that is left out, with what mean and worst run change by, in percent; nothing left out comes first.

    play: with the policy that lacks a part; "" for none.
    """
    whole = play("")
    rows = [["(all there)", *("{:.3f}, {:.3f}".format(*found) for found in whole)]]
    rows += [[part, *map(_changed, play(part), whole)] for part in left_out]
    return table(["without", *ways], rows)


def _changed(found: tuple[float, float], whole: tuple[float, float]) -> str:
    return ", ".join(f"{100.0 * (new / old - 1.0):+.1f}" for new, old in zip(found, whole))


def lowest(found: Results) -> Played:
    """The mean and the worst run of all cells, and of each kind."""
    every = [list(found), *grouped(found, lambda cell: cell.kind).values()]
    bests = ([found[cell].best for cell in cells] for cells in every)
    return [(geomean(best), min(best)) for best in bests]


def main(words: Sequence[str] | None = None) -> None:
    """Print the page; with --out, also write it there."""
    options = arguments(
        __doc__, words, seeds=3, jobs=1, every=1, parts=False, held_out=False, out=None,
        curve="", acceptance="", cost="", kind=",".join(ORACLE),
    )  # fmt: skip
    curves, acceptances, draft_costs, first = UNSEEN if options.held_out else SEEN
    if options.curve:
        curves = options.curve.split(",")
    if options.acceptance:
        acceptances = map(float, options.acceptance.split(","))
    if options.cost:
        draft_costs = [float(cost) for cost in options.cost.split(",")]
    cells = [
        Cell(curve, acceptance, cost, seed, known, kind=kind)
        for kind, acceptance in product(options.kind.split(","), acceptances)
        for seed in range(first, first + options.seeds)
        for curve, cost, known in product(curves, draft_costs, (False, True))
    ][:: options.every]
    with ProcessPoolExecutor(options.jobs) as pool:

        def play(part: str) -> Results:
            those = [cell._replace(without=part) for cell in cells]
            return dict(zip(those, pool.map(run, those, chunksize=8), strict=True))

        if options.parts:
            ways = ["all kinds", *dict.fromkeys(cell.kind for cell in cells)]
            told = (part for part in PARTS if part not in RECORDED)
            found = parts(ways, told, lambda part: lowest(play(part)))
        else:
            found = by_kind(play(""))
    page = "parts" if options.parts else "held-out" if options.held_out else "README"
    out = options.out and options.out / f"{page}.md"
    about = (__doc__ or "").partition("\n\n")[2].strip()
    publish("grid", words, out, PAGES[page], about, found)


if __name__ == "__main__":
    main()
