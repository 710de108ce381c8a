"""What rounds taught about a pair of models: read when it is loaded, written by every interface, the prior of first answers.

It is one small file for each target, draft, build of llama.cpp, processor and number of threads: times of decodes by rows, and
for each kind of answer (by rule, and by how tokens are drawn) what drafts were worth. Without it each process would learn anew,
in its user's first answer, that drafts do not pay there.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from pyspec.engine.profiles import SideFile, placed, prior_curve, prior_learned
from pyspec.errors import OptionError, PyspecError
from pyspec.policy.acceptance import TEMPERS
from pyspec.policy.goodput import Experience
from pyspec.policy.lengths import Length
from pyspec.policy.policies import Policies
from pyspec.store.files import Stamp, recall_as, remember_json, stamp
from pyspec.store.machine import engine_build, processor
from pyspec.store.watch import Watch

MAX_CHANGE = 3.0
"""If one-row decodes take this many times the kept time, the machine was busy with something else."""

_HALF_LIFE = 30.0  # days after which what answers taught counts for half: uses change
_EVERY_S = 60.0  # seconds between two writes of a running process
_DAY_S = 86400.0


class PairFacts(msgspec.Struct, omit_defaults=True):
    """The file. Raises OptionError for impossible numbers."""

    day: float = 0.0  # when it was written, in days since 1970
    target: dict[int, float] = {}  # ms of a decode without earlier context, by rows
    draft: dict[int, float] = {}  # ms of a draft's step, by sequences
    temper: int = 0  # see `Acceptance`
    kinds: dict[str, Experience] = {}  # by the names that `Policies` gives them

    def __post_init__(self) -> None:
        times = (*self.target.items(), *self.draft.items())
        good = all(0 < rows < 4096 and 0.0 < ms < 1e7 for rows, ms in times)
        if not (good and 0.0 <= self.day < 1e6 and 0 <= self.temper < TEMPERS):
            raise OptionError("what was kept about a pair contradicts itself")

    def seen_before(self, earlier: PairFacts) -> PairFacts:
        """These facts, with those of `earlier` that they lack. A machine is slow for a while, but none is fast by chance."""
        one = earlier.target.get(1, 0.0)
        trusted = not one or 0.0 < self.target.get(1, 0.0) <= MAX_CHANGE * one
        now = self if trusted else msgspec.structs.replace(self, target={}, draft={})
        return msgspec.structs.replace(
            now,
            target={**earlier.target, **now.target},
            draft={**earlier.draft, **now.draft},
            kinds={**earlier.kinds, **now.kinds},
        )


class PairMemory:
    """Reads what earlier processes kept about a loaded pair, and keeps what this one sees.

    Args:
        llm: the loaded target.
        sides: its draft and companion, in this order, as far as it has them.
    """

    def __init__(self, llm: Any, sides: Sequence[SideFile]) -> None:
        self._threads = int(llm.n_threads)
        self._file: Stamp | None = None
        with suppress(PyspecError):
            self._file = stamp(Path(llm.model_path))
        where = f"{self._threads} threads, {placed(llm)}, {processor()}, {engine_build()}"
        drafts = [stamp(side.path) for side in sides[:1]]
        self._name = f"pair 1, {drafts}, {where}"
        self._known = self._begun = self._read()
        self._watch, self._written = Watch(), perf_counter()
        self.temper = self._known.temper
        """The draft's temperature, as its engine has it now."""
        self.policies: Policies | None = None

    def begin(self, llm: Any, sides: Sequence[SideFile], length: Length, **more: Any) -> Policies:
        """Make the policies, with what is known. more: rule and draw of `Policies`."""
        known = self._known
        curve = prior_curve(llm, sides, known.target.get(1, 0.0))
        curve.begin_with(known.target, known.draft if sides else {})
        weight = 0.5 ** (max(0.0, _today() - known.day) / _HALF_LIFE)
        taught = {name: seen.aged(weight) for name, seen in known.kinds.items()}
        learned, companion = prior_learned(sides), len(sides) > 1
        self.policies = Policies(length, curve, learned, companion=companion, taught=taught, **more)
        return self.policies

    def kept_by(self, owner: object) -> None:
        """Keep what is seen when `owner` goes, or the process ends."""
        weakref.finalize(owner, self.keep)

    def keep_now_and_then(self) -> None:
        """Keep what was seen so far, once a minute: a server may run for weeks, and be killed."""
        if perf_counter() - self._written > _EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write what was seen; failures are ignored, since answers do not depend on it."""
        if sys.is_finalizing() or self.policies is None or self._file is None:
            return
        self._written = perf_counter()
        if not (taught := self.policies.taught()):
            return
        quiet = not self._watch.busy(self._threads)
        curve = self.policies.curve
        own = PairFacts(
            _today(),
            curve.target.seen() if quiet else {},
            curve.draft.seen() if quiet else {},
            self.temper,
            taught,
        )
        now = self._read()
        if now != self._known:  # another process wrote meanwhile
            own.kinds = {
                name: seen.mixed(now.kinds[name]) if name in now.kinds else seen
                for name, seen in taught.items()
            }
        self._known = own.seen_before(now)
        remember_json(self._name, self._file, self._known)

    def _read(self) -> PairFacts:
        found = None if self._file is None else recall_as(self._name, self._file, PairFacts)
        return found or PairFacts()


def _today() -> float:
    return time.time() // _DAY_S
