"""Where block verification pays: tokens a verify against shared noise and against p/q, on recorded rows.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, every --every-th one). Each case is DRAFT=T,T/MIN_P,...: a
draft, and the temperatures and min-p (0.05 if none is named) at which it is tried. At each token of these texts the draft
continues. All three ways give the target's own distribution:

- `shared noise`: target and draft draw with the same Gumbel noise (native/ps_draw.c), and equal tokens are accepted.
- `p/q`: a drafted token is accepted with probability min(1, p / q), else the target draws from what q lacks of p.
- `block`: a draft is judged as a whole (native/ps_block.c; Sun et al., arXiv 2403.10444). Where the text has the draft's first
  n tokens, the chance that they are accepted is the least of 1 and the products of q / p up to each of them. No verification of
  one draft accepts more.

The draft draws under min-p, at the factor of the target's temperature (1, 0.8, 0.65, 0.5) that is best for the way, as the
engine learns it for shared noise. `top-p` is shared noise at factor 1 where the target's whole chain truncates the draft's rows
too, over the same without that; the engine does so where min-p is 0. Chances are computed along the text, and rounds follow one
another as in an answer. Length K drafts K tokens. A policy estimates acceptance from bins of a figure, and weighs it against the
time of rows (--rows, by curve: with `each .15`, each further row takes .15 of a decode) and of a draft's step (--step,
--head-step), in decodes of one row; the price of time is the best of ten for each way, the factor the best of 1 and 0.65. With
shared noise it looks at everything, also at the tokens that it drew, and drops those that look bad. With p/q and block, every
token that was drawn is verified, and by what it is only the next one is settled: otherwise the text would be another's. `over
shared noise` is the mean over questions of the ratio, with a 95 % interval. Heads draft at most 4 tokens. With min-p 0 only
fixed lengths are tried. Nothing is timed.

With --keep FOLDER, what is recorded is kept there, and a run with the same cases begins with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import Made, arguments, keep, made_by, page_of, times
from measure.report import table
from places import CHAINED, DRAWS, FACTORS, LONGEST, Array, Place, places_of, store, stored
from rows import open_pair, prompts_of

from pyspec.sampling.chain import Sampling
from pyspec.sampling.noise import derive_seed
from pyspec.text.tokens import common_prefix

OPTIONS = {
    "every": 24, "tokens": 40, "threads": 1, "step": 0.15, "head_step": 0.1, "keep": None, "out": None,
    "rows": "H100=1,1.03,1.05,1.11,1.15,1.24,1.31,1.39,1.71;each .05=1,1.05,1.1,1.15,1.2,1.25,1.3,1.35,1.4;"
        "each .15=1,1.15,1.3,1.45,1.6,1.75,1.9,2.05,2.2;each .25=1,1.25,1.5,1.75,2,2.25,2.5,2.75,3;"
        "CPU=1,1.65,1.93,2.09,2.27,2.27,2.57,2.62,3.09",
}  # fmt: skip
BINS, LEAST_TEXT = 12, 8
WORTHS = (0.5, 0.65, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.1, 2.4)
"""Prices of a decode's time, in tokens."""
NOISE, SINGLE, BLOCK, TOP_P = "shared noise", "p/q", "block", "top-p"
WAYS = (NOISE, SINGLE, BLOCK)
HEAD = (
    "draft", "temperature", "min-p", "length", "way", "factor", "tokens a verify", "over shared noise",
    "tokens in a decode's time", "over shared noise",
)  # fmt: skip


class Text(NamedTuple):
    """What a text takes: its tokens, its verifies, and their time in decodes of one row."""

    tokens: float
    verifies: float
    time: float


# -- what is accepted --------------------------------------------------------------------------------------------------


def taken(place: Place, way: str, factor: int) -> Array:
    """The chance that a draft's first 0, 1, ... tokens are accepted, given the text, as far as rows are known."""
    if way == BLOCK:
        each = np.minimum.accumulate(np.minimum(1.0, np.cumprod(place.ratio[factor])))
    else:
        known = {NOISE: place.shared[factor], SINGLE: place.least[factor], TOP_P: place.whole}
        each = np.cumprod(known[way])
    return np.concatenate([[1.0], each])


def rounds(takes: Sequence[Array], costs: Sequence[float]) -> Text:
    """One text. takes: of each place, the chance that at least 0, 1, ... drafted tokens are accepted; costs: a round's there."""
    visits = np.zeros(len(takes) + LONGEST + 2)
    visits[0], tokens, time = 1.0, 0.0, 0.0
    for s, (at_least, cost) in enumerate(zip(takes, costs, strict=True)):
        ends = at_least - np.append(at_least[1:], 0.0)
        visits[s + 1 : s + 1 + len(ends)] += visits[s] * ends
        tokens += visits[s] * float(at_least.sum())
        time += visits[s] * cost
    return Text(tokens, float(visits[: len(takes)].sum()), time)


def fixed(texts: Sequence[Sequence[Place]], way: str, factor: int, k: int) -> list[Text]:
    """Every round drafts k tokens; time is not counted."""
    return [
        rounds([taken(p, way, factor)[: k + 1] for p in text], [1.0] * len(text)) for text in texts
    ]


# -- policies ----------------------------------------------------------------------------------------------------------


class Bins:
    """Acceptance by bins of a figure, and its mean."""

    def __init__(self, figures: Array, accepted: Array) -> None:
        self.edges = np.unique(np.quantile(figures, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
        where, n = np.searchsorted(self.edges, figures), len(self.edges) + 1
        self.mean = float(accepted.mean())
        hits = np.bincount(where, accepted, minlength=n) + 4.0 * self.mean
        self.table = hits / (np.bincount(where, minlength=n) + 4.0)

    def __call__(self, figures: Array) -> Array:
        found: Array = self.table[np.searchsorted(self.edges, figures)]
        return found


class Prices(NamedTuple):
    """verify: time of a verify of 0, 1, ... drafted tokens; step: of a draft's step; worth: tokens that a time has to bring."""

    verify: Array
    step: float
    worth: float

    def gain(self, n: int, survival: float, usual: float) -> float:
        """The most that going on brings after n tokens, if the next ones are accepted as usual."""
        j = np.arange(1, LONGEST - n + 1)
        brought = survival * np.cumsum(usual**j)
        costs = self.verify[n + j] - self.verify[n] + self.step * j
        return float((brought - self.worth * costs).max(initial=-1.0))


def look(leads: Array, table_: Bins, prices: Prices) -> tuple[int, int]:
    """Steps and verified tokens where everything may be looked at: drafts on while it pays, then takes the best length."""
    chances, survival, brought = table_(leads), 1.0, [0.0]
    for n, chance in enumerate(chances):
        if prices.gain(n, survival, table_.mean) <= 0.0:
            break
        survival *= float(chance)
        brought.append(brought[-1] + survival)
    gains = np.array(brought) - prices.worth * prices.verify[: len(brought)]
    return len(brought) - 1, int(gains.argmax())


def settle(drawn: Array, usual: float, after: Bins, prices: Prices) -> int:
    """Tokens where each is verified once it is drawn: drafts on while that is expected to pay."""
    survivals, survival = after(drawn), 1.0
    for n in range(len(drawn)):
        if prices.gain(n, survival, usual) <= 0.0:
            return n
        survival *= float(survivals[n])
    return len(drawn)


def looking(texts: Sequence[Sequence[Place]], factor: int, prices: Prices) -> list[Text]:
    """Shared noise with a policy."""
    flat = list(chain(*texts))
    leads, hits = ([getattr(p, name)[factor, 0] for p in flat] for name in ("lead", "match"))
    bins = Bins(np.concatenate(leads), np.concatenate(hits))

    def round_at(place: Place) -> tuple[Array, float]:
        at_least = np.zeros(LONGEST + 1)
        for lead, match in zip(place.lead[factor].T, place.match[factor].T, strict=True):
            _, n = look(lead, bins, prices)
            at_least[: common_prefix(match.tolist(), [1.0] * n) + 1] += 1.0 / DRAWS
        steps, n = look(place.free[FACTORS[factor]].lead, bins, prices)
        return at_least, float(prices.verify[n] + prices.step * steps)

    return [rounds(*zip(*map(round_at, text), strict=True)) for text in texts]


def settling(texts: Sequence[Sequence[Place]], way: str, factor: int, prices: Prices) -> list[Text]:
    """p/q or block with a policy."""
    flat = list(chain(*texts))
    usual = float(np.mean([p.first[factor] for p in flat]))
    after = Bins(*np.concatenate([p.posts for p in flat])[:, ::-1].T)

    def round_at(place: Place) -> tuple[Array, float]:
        n = settle(place.drawn, usual, after, prices)
        most = settle(place.free[FACTORS[factor]].drawn, usual, after, prices)
        return taken(place, way, factor)[: n + 1], float(prices.verify[most] + prices.step * most)

    return [rounds(*zip(*map(round_at, text), strict=True)) for text in texts]


def planned(
    texts: Sequence[Sequence[Place]], way: str, factor: int, verify: Array, step: float
) -> list[Text]:
    """The policy at the price of time that makes it fastest."""
    found = []
    for worth in WORTHS:
        prices = Prices(verify, step, worth)
        known = (
            looking(texts, factor, prices) if way == NOISE else settling(texts, way, factor, prices)
        )
        found.append(known)
    return max(found, key=speed)


# -- the page ----------------------------------------------------------------------------------------------------------


class Blocks(Made):
    """A line of the table for each draft, temperature, length and way."""

    rows: list[list[str]]

    def page(self) -> str:
        """The title, a description and the table."""
        return page_of("What block verification brings", __doc__, self.made, table(HEAD, self.rows))


def length(found: Sequence[Text]) -> float:
    """Tokens a verify over all texts."""
    return sum(one.tokens for one in found) / sum(one.verifies for one in found)


def speed(found: Sequence[Text]) -> float:
    """Tokens in the time of a decode of one row over all texts."""
    return sum(one.tokens for one in found) / sum(one.time for one in found)


def over(found: Sequence[Text], now: Sequence[Text], name: str) -> str:
    """The mean ratio of tokens by verifies or by time, with its interval."""
    rates = ([one.tokens / getattr(one, name) for one in each] for each in (found, now))
    return times(np.log([a / b for a, b in zip(*rates, strict=True)]).tolist())


def fixed_lines(texts: Sequence[Sequence[Place]]) -> Iterator[list[str]]:
    """Lines of fixed lengths, behind the case."""
    longest = max(len(place.drawn) for text in texts for place in text)
    for k in [k for k in (2, 4, 8) if k <= longest]:
        same = fixed(texts, NOISE, 0, k)
        each = {way: [fixed(texts, way, f, k) for f in range(len(FACTORS))] for way in WAYS}
        best = {way: max(found, key=length) for way, found in each.items()}
        for way, found in best.items():
            factor = f"{FACTORS[each[way].index(found)]:g}"
            yield [
                str(k),
                way,
                factor,
                f"{length(found):.3f}",
                over(found, best[NOISE], "verifies"),
                "-",
                "-",
            ]
        whole = fixed(texts, TOP_P, 0, k)
        yield [str(k), TOP_P, "1", f"{length(whole):.3f}", over(whole, same, "verifies"), "-", "-"]


def policy_lines(
    texts: Sequence[Sequence[Place]], curve: str, verify: Array, step: float
) -> Iterator[list[str]]:
    """Lines of the policies on one curve, behind the case."""
    now: list[Text] = []
    for way in WAYS:
        each = {f: planned(texts, way, FACTORS.index(f), verify, step) for f in CHAINED}
        best = max(each, key=lambda f: speed(each[f]))
        found = each[best]
        now = now or found
        ratios = [over(found, now, name) for name in ("verifies", "time")]
        yield [
            f"policy, {curve}",
            way,
            f"{best:g}",
            f"{length(found):.3f}",
            ratios[0],
            f"{speed(found):.3f}",
            ratios[1],
        ]


def texts_of(options: Any, draft: str, temp: float, min_p: float) -> list[list[Place]]:
    """What is known of each question's answer, from an earlier run if it kept that."""
    path = (
        None
        if options.keep is None
        else options.keep / f"{Path(draft).stem}-{temp:g}-{min_p:g}.pickle"
    )
    if path is not None and (found := stored(path)) is not None:
        return found
    texts = []
    with open_pair(options.target, draft, options.threads) as llm:
        for prompt in prompts_of(llm, options):
            how = Sampling(temperature=temp, min_p=min_p, seed=derive_seed(1, *prompt))
            places = places_of(llm, prompt, how, options.tokens, free=min_p > 0.0)
            texts += [places] if len(places) > LEAST_TEXT else []
            print(draft, temp, min_p, len(texts), file=sys.stderr, flush=True)
    if path is not None:
        store(path, texts)
    return texts


def lines(options: Any, curves: Mapping[str, Array]) -> Iterator[list[str]]:
    """All lines."""
    for case in options.cases:
        draft, _, named = case.partition("=")
        step = options.head_step if "eagle" in Path(draft).stem else options.step
        for one in named.split(","):
            temp, _, min_p = one.partition("/")
            texts = texts_of(options, draft, float(temp), float(min_p or 0.05))
            about = [Path(draft).stem, temp, min_p or "0.05"]
            yield from (about + line for line in fixed_lines(texts))
            if float(min_p or 0.05) > 0.0:
                for curve, verify in curves.items():
                    yield from (about + line for line in policy_lines(texts, curve, verify, step))


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "target", "questions", "cases*", **OPTIONS)
    named = (one.partition("=") for one in options.rows.split(";"))
    curves = {name: np.array([float(n) for n in told.split(",")]) for name, _, told in named}
    results = Blocks(*made_by("blocks", words), list(lines(options, curves)))
    print(table(HEAD, results.rows))
    if options.out:
        keep(results, options.out / "blocks.json")


if __name__ == "__main__":
    main()
