"""Parts of the length policy that can be left out, to see what they are worth."""

# ruff: noqa: SLF001 - parts are private
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from pyspec.draft import acceptance, goodput
from pyspec.draft.acceptance import Calibration, LookupEstimator
from pyspec.draft.costs import RowTimes
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.stopping import Forecast, best_length, draft_floors
from pyspec.draft.switch import UseSwitch
from pyspec.draft.types import LONGEST, SeqOutcome

from . import simulate


def _greedy_floors(
    verify: Sequence[float], step: float, price: float, nexts: Any, acceptance: Sequence[float]
) -> tuple[list[float], float]:
    """Continue a draft while the next token pays by itself, assumed to be as good as the mean of those before."""
    later = max(0.01, nexts[1] @ np.asarray(acceptance))
    rows = [price * (more - less + step) / later for less, more in pairwise(verify)]
    return [*rows[1:], 1.1], draft_floors(verify, step, price, nexts, acceptance)[1]


def _always(_: GoodputPolicy, place: Any) -> bool:
    return bool(place.room > 0 and place.longest)


def _counted(_: Forecast, seq: Any) -> float:
    return float(seq.n_accepted)


_start = LookupEstimator._start


def _first_place(self: LookupEstimator, match: int, n: int) -> list[float]:
    return [self.mean[self._start(match)]] * n


_nexts = Calibration.nexts


def _same(self: Calibration) -> Any:
    both = sum(_nexts(self)) / 2.0
    return both, both


def _own(self: RowTimes, key: int) -> float:
    return self._factors.get(key, 1.0)


def _alone(survival: Sequence[Sequence[float]], target: Sequence[float], price: float) -> list[int]:
    """Each sequence by itself, as if the others drafted nothing."""
    rows = [target[len(survival) + g] for g in range(LONGEST + 1)]
    return [best_length(chain[:LONGEST], rows, price) for chain in survival]


def _verified(self: SeqOutcome, n: int) -> list[bool]:
    return ([True] * self.n_accepted + [False] * (self.n_accepted < self.n_verified))[:n]


Patch = tuple[Any, str, Any]
PARTS: Mapping[str, Sequence[Patch]] = {
    "(other noise)": [(simulate, "_LUCK", 5000)],  # nothing: how much the measure scatters
    # whether a model drafts
    "switch": [(GoodputPolicy, "_pays", _always)],  # drafts only where they gain
    "trials": [(UseSwitch, "_spend", lambda *_: False)],  # trials of a model that did not gain
    "taught": [(GoodputPolicy, "begin_with", lambda *_: None)],  # what other processes saw of gains
    "scouts": [(GoodputPolicy, "_scouts", lambda _, drafting: drafting)],  # one of a batch drafts first
    "rest": [(GoodputPolicy, "_left", lambda _, place: float(place.left))],  # expected rest of an answer
    "expectation": [(Forecast, "brought", _counted)],  # gain by half expectation
    # how long
    "floors": [(goodput, "draft_floors", _greedy_floors)],  # floors by optimal stopping
    "markup": [(goodput, "_MARKUP", 0.0)],  # markup of a ms of drafting
    "batch": [(goodput, "allocate", _alone)],  # sequences share the rows of a decode
    # what rows cost
    "neighbours": [(RowTimes, "_factor", _own)],  # a count not timed is like its neighbours
    "stalls": [(RowTimes, "_set_aside", lambda *_: False)],  # stalls are not believed
    "depth": [(RowTimes, "_around", lambda self, _: (self._bases[0], self._bases[0], 0.0))],  # depth of the context
    # what is accepted
    "table": [(acceptance, "_LINE_WEIGHT", 1e9)],  # table of acceptance by bin
    "line": [(acceptance, "_SPREADS", np.array([1e-3, 1e-3]))],  # line that all bins share
    "first token": [(Calibration, "nexts", _same)],  # first and later tokens apart
    "left out": [(SeqOutcome, "hits", _verified)],  # the token behind the verified ones teaches
    # lookup
    "places": [(acceptance, "_PLACES", (99, 99, 99)), (LookupEstimator, "predict", _first_place)],  # lookup by position
    "matches": [(LookupEstimator, "_start", lambda self, _: _start(self, 4))],  # lookup by length of match
    "caution": [(acceptance, "_CAUTION", 0.0)],  # a prior below the fit
}  # fmt: skip
"""What takes the place of each."""

RECORDED = ["places", "matches", "caution"]
"""Parts of which only recorded rounds can tell: synthetic texts repeat nothing and are drawn in one way."""


@contextmanager
def without(name: str) -> Iterator[None]:
    """In the body, policies lack this part; "" leaves out none."""
    with ExitStack() as stack:
        for owner, attribute, other in PARTS[name] if name else ():
            stack.enter_context(patch.object(owner, attribute, other))
        yield
