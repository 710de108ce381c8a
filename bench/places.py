"""What is known of each place of a known text to judge ways of verifying: chances along the text, and figures for policies.

A policy also drafts where the text does not go, so at each place free drafts are drawn, of which only the figures are kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from measure.draws import left
from measure.logits import rows_after
from rows import Recorder, Row, record

from pyspec import SpeculativeLlama
from pyspec.policy.types import Draft
from pyspec.sampling.chain import Sampling, build_chain, in_force
from pyspec.sampling.noise import Coupling, derive_seed

Array = npt.NDArray[np.float64]
Shares = tuple[npt.NDArray[np.int32], Array]
"""A sparse distribution: ids in order, and their probabilities."""

LONGEST, LONGEST_HEAD = 8, 4
"""Longest draft of a model, and of a head, which has to draft anew for each of its rows."""
DRAWS, TOKENS = 8, 4
"""Draws of the noise for each token of a text, and tokens drawn from each row."""
FACTORS = (1.0, 0.8, 0.65, 0.5)
CHAINED = (1.0, 0.65)
"""The factors with which free drafts are drawn."""


class Free(NamedTuple):
    """Figures of a draft that goes its own way, one for each token: as in `Place`."""

    lead: Array
    drawn: Array


class Place(NamedTuple):
    """One place of a text: what is known of a draft that has the text's own tokens there, [factor, token, ...].

    shared, least: the chance that shared noise, or p/q, accepts the token, given those before it and that the text has it.
    whole: as `shared`, with the target's whole chain on the draft's row, [token]. ratio: q / p of the token. match, lead: by
    draw of the noise, whether it draws the token from the draft's row, and the figure that the engine reports then. drawn: the
    logit of the token in the draft's row, [token]. first: the mass that p and q of the first row share, [factor]. posts: of
    tokens drawn from that row, the chance that p/q accepts each, and its figure. free: by factor, a draft that goes its own way.
    """

    shared: Array
    whole: Array
    least: Array
    ratio: Array
    match: Array
    lead: Array
    drawn: Array
    first: Array
    posts: Array
    free: Mapping[float, Free]


class Drafts(Recorder):
    """Also draws free drafts, if asked to."""

    def __init__(self, *given: Any, free: bool) -> None:
        super().__init__(*given)
        self.free: dict[int, dict[float, Free]] = {}
        self._factors = CHAINED if free else ()

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Draft along the text, then freely."""
        found = super().choose(drafts)
        if self._at in self.places:
            self.free[self._at] = {factor: self._free(factor) for factor in self._factors}
            self._engine.put_draft(0, ())
            self._engine.couple(0, self._how.coupling)
        return found

    def _free(self, factor: float) -> Free:
        how, found, begin = self._how, list[tuple[float, ...]](), list[int]()
        seed = derive_seed(how.seed, "free", self._at)
        coupling = Coupling(seed, factor * how.temperature, how.min_p, how.top_p)
        for i in range(min(self._k, len(self._text) - self._at)):
            begin = self._draft(coupling, begin, i + 1)
            if len(begin) <= i:
                break
            row, lead = self._last_row(), self._engine.drafted(0).p[i]
            drawn = exp(float(row[begin[i]]) - log_sum(row))
            found.append((logit(lead), logit(drawn)))
        return Free(*np.array(found).reshape(-1, 2).T)


def logit(p: Array | float) -> Any:
    """The logit of probabilities, which are kept away from 0 and 1."""
    p = np.clip(p, 1e-6, 1.0 - 1e-6)
    return np.log(p / (1.0 - p))


def log_sum(row: Row) -> float:
    """The logarithm of the sum of a row's exponentials."""
    top = float(row.max())
    return top + log(float(np.exp(row - top, dtype=np.float64).sum()))


def truncated(row: Row, how: Sampling, factor: float) -> Shares:
    """What the engine's draft draws from: under min-p, or the first token where it fills top-p."""
    if float(row.max()) - log_sum(row) >= log(how.top_p):
        return np.array([row.argmax()], np.int32), np.ones(1)
    floor = row.max() + np.float32(log(how.min_p)) if how.min_p else -np.inf
    ids = np.flatnonzero(row >= floor).astype(np.int32)
    p = np.exp((row[ids].astype(np.float64) - float(row.max())) / (factor * how.temperature))
    ids, p = ids[p > 1e-7], p[p > 1e-7]
    return ids, p / p.sum()


def by_chain(how: Sampling, llm: SpeculativeLlama, rows: Iterable[Row]) -> list[Shares]:
    """The distribution that the target's sampler chain leaves of each row."""
    found: list[Shares] = []
    with in_force(chain := build_chain(how, llm)):
        for row in rows:
            ids, scaled = left(row, chain, how.temperature)
            order = np.argsort(ids)
            p = np.exp(scaled[order] - scaled.max())
            found.append((ids[order], p / p.sum()))
    return found


def aligned(p: Shares, q: Shares) -> tuple[npt.NDArray[np.int32], Array, Array]:
    """The ids of both, and both on these."""
    ids = np.union1d(p[0], q[0])
    both = np.zeros((2, len(ids)))
    for own, (known, share) in zip(both, (p, q), strict=True):
        own[np.searchsorted(ids, known)] = share
    return ids, both[0], both[1]


def coupled_at(p: Array, q: Array, x: int) -> float:
    """How often noise that draws x from p also draws it from q."""
    if not q[x]:
        return 0.0
    return float(1.0 / np.maximum(p / p[x], q / q[x]).sum() / p[x])


def drawn_with(p: Array, q: Array, x: int, chance: np.random.Generator) -> tuple[Any, Array]:
    """What q draws with noise that draws x from p, and how far ahead of the next it is, by draw of the noise."""
    top, size = chance.gumbel(size=(DRAWS, 1)), (DRAWS, len(p))
    noise, has = chance.gumbel(size=size), p > 0.0
    logs = np.log(p, out=np.zeros(len(p)), where=has)
    below = -np.log(np.exp(-top) + np.exp(-(logs + noise))) - logs  # a score below that of x
    held = np.where(has, below, noise)
    held[:, x] = top[:, 0] - logs[x]
    scores = np.where(q > 0.0, np.log(q, out=np.zeros(len(q)), where=q > 0.0) + held, -np.inf)
    order = np.argsort(scores, axis=1)
    best = np.take_along_axis(scores, order[:, -1:], 1)[:, 0]
    second = np.take_along_axis(scores, order[:, -2:-1], 1)[:, 0] if len(p) > 1 else -np.inf
    return order[:, -1], best - second


def along(
    p: Shares, row: Row, whole: Shares, token: int, how: Sampling, chance: np.random.Generator
) -> dict[str, Any]:
    """The figures of one row of the draft where the text has `token`; the fields of `Place`, for one token."""
    found: dict[str, Any] = {
        key: [] for key in ("shared", "least", "ratio", "match", "lead", "first")
    }
    total = log_sum(row)
    for factor in FACTORS:
        q = truncated(row, how, factor)
        ids, mine, other = aligned(p, q)
        x = int(np.searchsorted(ids, token))
        first, ahead = drawn_with(mine, other, x, chance)
        own = logit(np.exp(row[ids[first]].astype(np.float64) - total))
        lead = np.clip(np.minimum(factor * how.temperature * ahead, 16.0) + 0.5 * own, -16.0, 16.0)
        found["shared"].append(coupled_at(mine, other, x))
        found["least"].append(min(1.0, other[x] / mine[x]))
        found["ratio"].append(other[x] / mine[x])
        found["match"].append((first == x).astype(np.float64))
        found["lead"].append(own if len(q[0]) == 1 else lead)  # alone, it is not drawn
        found["first"].append(np.minimum(mine, other).sum())
        if factor == 1.0:
            some = chance.choice(len(ids), size=TOKENS, p=other / other.sum())
            figures = logit(np.exp(row[ids[some]].astype(np.float64) - total))
            found["posts"] = np.stack([np.minimum(1.0, mine[some] / other[some]), figures], 1)
    found["drawn"] = logit(exp(float(row[token]) - total))
    ids, mine, other = aligned(p, whole)
    found["whole"] = coupled_at(mine, other, int(np.searchsorted(ids, token)))
    return found


def places_of(
    llm: SpeculativeLlama, prompt: Sequence[int], how: Sampling, tokens: int, *, free: bool
) -> list[Place]:
    """All places of one answer."""
    longest = LONGEST_HEAD if llm.assembly.engine.window else LONGEST
    (text, places), recorder = record(llm, prompt, how, tokens, longest, partial(Drafts, free=free))
    p = by_chain(how, llm, rows_after(llm, prompt, text[len(prompt) :]))
    chance, held = np.random.default_rng(how.seed), dict[tuple[int, int], dict[str, Any]]()
    found = []
    for at, place in places.items():
        each = []
        for i, (row, token) in enumerate(zip(place.rows, text[at:], strict=False)):
            mine, key = p[at + i - len(prompt)], (at + i, hash(row.tobytes()))
            if token not in mine[0]:
                break  # rounding made another row
            if key not in held:
                held[key] = along(mine, row, by_chain(how, llm, [row])[0], token, how, chance)
            each.append(held[key])
        if each:
            found.append(_place(each, recorder.free[at]))
    return found


def _place(each: Sequence[Mapping[str, Any]], free: Mapping[float, Free]) -> Place:
    """Join the figures of a place's tokens."""
    names = ("shared", "least", "ratio", "match", "lead")
    joined = {name: np.moveaxis(np.array([one[name] for one in each]), 0, 1) for name in names}
    whole, drawn = (np.array([one[name] for one in each]) for name in ("whole", "drawn"))
    first = np.array(each[0]["first"])
    return Place(whole=whole, drawn=drawn, first=first, posts=each[0]["posts"], free=free, **joined)


def stored(path: Path) -> list[list[Place]] | None:
    """The places that an earlier run stored, by text."""
    return pickle.loads(path.read_bytes()) if path.exists() else None  # noqa: S301 - a file of `store`


def store(path: Path, texts: list[list[Place]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(texts))
