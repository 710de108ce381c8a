"""Stores the verdict of `bench/quality.py` on a pair, for `pyspec.engine.verdicts` to follow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pyspec.engine.profiles import write_struct
from pyspec.engine.verdicts import PairVerdict, PairVerdicts, read_verdicts, stored_path
from pyspec.errors import ProfileError
from pyspec.sampling.verification import Margin


def settings_of(rule: Margin) -> dict[str, Any]:
    """Return the numbers in which a rule differs from the default margin."""
    plain = vars(Margin())
    own = {name: value for name, value in vars(rule).items() if value != plain[name]}
    # JSON has no infinity
    return {name: "inf" if value == math.inf else value for name, value in own.items()}


def keep_verdict(verdict: PairVerdict) -> Path:
    """Store a verdict in place of an older one. Raises ProfileError if the folder refuses."""
    path = stored_path(verdict.target, verdict.draft)
    try:
        others = [each for each in read_verdicts(path) if each.drawn != verdict.drawn]
    except ProfileError:
        others = []  # a damaged file is replaced
    return write_struct(path, PairVerdicts([*others, verdict]), "verdict")
