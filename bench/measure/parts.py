"""Parts of the length policy that can be left out, to see what they are worth."""

# ruff: noqa: SLF001 - parts are private
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from pyspec.policy import acceptance, goodput, matches, row_times, switch, texts
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.matches import LookupEstimator
from pyspec.policy.row_times import RowTimes
from pyspec.policy.stopping import Forecast, draft_floors
from pyspec.policy.switch import UseSwitch


def _greedy_floors(
    verify: Sequence[float], step: float, price: float, nexts: Any, acceptance: Sequence[float]
) -> tuple[list[float], float]:
    """Continue a draft while the next token pays by itself, assumed to be as good as the mean of those before."""
    later = max(0.01, nexts[1] @ np.asarray(acceptance))
    rows = [price * (more - less + step) / later for less, more in pairwise(verify)]
    return [*rows[1:], 1.1], draft_floors(verify, step, price, nexts, acceptance)[1]


def _always(_: GoodputPolicy, place: Any) -> bool:
    return bool(place.room > 0 and place.longest)


def _survival(_: GoodputPolicy, read: Forecast) -> list[float]:
    return read.survival


def _counted(_: Forecast, seq: Any) -> float:
    return float(seq.n_accepted)


_start = LookupEstimator._start


def _first_place(self: LookupEstimator, match: int, n: int, choices: int = 1) -> list[float]:
    return [self.mean[self._start(match, choices)]] * n


def _used(self: UseSwitch, gain: float, tokens: float = 1.0, _: int = 0) -> None:
    self._count = min(self._count + 1.0, switch._MEMORY)
    self._mean += (gain - self._mean) / self._count
    self._tokens += (tokens - self._tokens) / self._count


Patch = tuple[Any, str, Any]
PARTS: Mapping[str, Sequence[Patch]] = {
    "switch": [(GoodputPolicy, "_pays", _always)],  # drafts only where they gain
    "trials": [(UseSwitch, "_spend", lambda *_: False)],  # trials of a model that did not gain
    "floors": [(GoodputPolicy, "floors", staticmethod(_greedy_floors))],  # floors by optimal stopping
    "markup": [(goodput, "_MARKUP", 0.0)],  # markup of a ms of drafting
    "won": [(UseSwitch, "used", _used)],  # a trial that won goes on
    "hope": [(RowTimes, "_hoped", RowTimes._known)],  # hope for counts not timed yet
    "tiles": [(row_times, "_EDGES", ())],  # hope for the ends of tiles
    "table": [(acceptance, "_LINE_WEIGHT", 1e9)],  # table of acceptance by bin
    "line": [(acceptance, "_SPREADS", np.array([1e-3, 1e-3]))],  # line that all bins share
    "expectation": [(Forecast, "brought", _counted)],  # gain by half expectation
    "losses": [(texts, "_SHARE", 1e9)],  # losses of a sequence
    "risk": [(GoodputPolicy, "_bearable", _survival)],  # risk of a lookup draft
    "reread": [(GoodputPolicy, "_worth_of_one", lambda _: 1.0)],  # cost of reading again
    "rest": [(GoodputPolicy, "_left", lambda _, place: float(place.left))],  # expected rest of an answer
    "recent": [(matches, "_RECENT", (2.0, 2.0))],  # lookup by recent success
    "places": [(matches, "_PLACES", (99, 99, 99)), (LookupEstimator, "predict", _first_place)],  # lookup by position
    "choices": [(LookupEstimator, "_start", lambda self, match, _: _start(self, match, 1))],  # lookup by several continuations
    "pause": [(goodput, "_REST", 1)],  # rounds without a draft, once none pays
}  # fmt: skip
"""What takes the place of each."""


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """In the body, policies lack these parts."""
    with ExitStack() as stack:
        for name in names:
            for owner, attribute, other in PARTS[name]:
                stack.enter_context(patch.object(owner, attribute, other))
        yield
