"""What a policy begins with for a pair of models: what earlier rounds taught, the draft's prior, or guesses by types and sizes.

A draft's acceptance is the same on any machine, so it may be shipped as a prior beside the draft. A policy starts without
one that is damaged or belongs to another draft, and a warning says so.

What rounds taught is one small file for each target, draft, build of llama.cpp, processor and number of threads: times of decodes
by rows, and for each kind of answer (by rule, and by how tokens are drawn) what drafts were worth. Without it each process would
learn anew, in its user's first answer, that drafts do not pay there. Where there is none, rows are timed before the first answer:
a count that was never timed would have to be tried, and most trials cost an answer more than they bring.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, NamedTuple

import llama_cpp
import msgspec

from pyspec._lib import release_workers
from pyspec.draft.acceptance import TEMPERS, Acceptance, Calibration, Logistic
from pyspec.draft.costs import OWN_MAX, ROWS, SURE, CostCurve, KeptTime
from pyspec.draft.goodput import Experience
from pyspec.draft.policies import Length, Policies
from pyspec.engine.offload import count_placeable
from pyspec.errors import EngineError, OptionError, PyspecError
from pyspec.gguf.header import facts_of
from pyspec.machine.attention import Decodes
from pyspec.machine.devices import layer_devices
from pyspec.machine.files import Stamp, file_sha256, read_json, recall_as, remember, stamp
from pyspec.machine.machine import Watch, engine_build, is_quiet, processor
from pyspec.machine.others import came_with

log = logging.getLogger("pyspec")


class Prior(msgspec.Struct, forbid_unknown_fields=True):
    """The file beside a draft: its acceptance, which holds on any machine.

    Lookup has no part: its acceptance is not a property of the draft, and what one kind of text taught did harm with others.
    """

    draft: str
    """The file's sha256."""
    companion: str
    """Its file's sha256."""
    calibration: Calibration
    judged: Logistic
    """What the companion's scores tell; ignored with another companion or none."""
    coupled: Calibration = msgspec.field(default_factory=Calibration)
    format: Literal[1] = 1


# -- of loaded models --------------------------------------------------------------------------------------------------


class SideFile(NamedTuple):
    """A draft or companion."""

    path: Path
    size: int
    """Bytes that one of its steps reads."""
    reads_states: bool = False
    """Whether it reads the target's states."""


def placed(llm: Any) -> str:
    """Say how many layers are on devices, and on which."""
    offloaded = gpu_layers(llm)
    if not offloaded:
        return "0 layers on a GPU"
    most = count_placeable(llm.model)
    if not 0 <= offloaded < most:
        offloaded = most
    there = " + ".join(each.description for each in layer_devices(llm.devices))
    return f"{offloaded} layers on {there}"


def hashes_of(sides: Sequence[SideFile]) -> tuple[str, str]:
    """Return the sha256 of the draft's and the companion's file, "" for one that is not there."""
    draft, companion = [*(file_sha256(side.path) for side in sides), "", ""][:2]
    return draft, companion


def prior_learned(sides: Sequence[SideFile]) -> Acceptance:
    """Return the acceptance in a draft's prior; one that has learned nothing where none lies beside this very draft."""
    prior = read_json(came_with(sides[0].path, ".prior.json"), Prior) if sides else None
    if prior is None:
        return Acceptance()
    draft, companion = hashes_of(sides)
    if prior.draft != draft:
        log.warning("the prior of %s belongs to another draft; starting without it", sides[0].path)
        return Acceptance()
    judged = prior.judged if prior.companion == companion else Logistic()
    return Acceptance(prior.calibration, judged, coupled=prior.coupled)


def gpu_layers(llm: Any) -> int:
    """Return the number of layers requested on devices; -1, or more than there are, means all. 0 if there is no device."""
    layers = int(llm.model_params.n_gpu_layers)
    return layers if layers and layer_devices(llm.devices) else 0


def prior_curve(
    llm: Any, sides: Sequence[SideFile], times: Mapping[int, KeptTime] | None = None
) -> CostCurve:
    """Return the curve assumed before any round: side models take a share of a target's row by the weights that they read.

    times: of the target's decodes by rows on this machine, as far as they are known.
    """
    rows = {n: kept.ms for n, kept in (times or {}).items()}
    if len(rows) < _KNOWN:
        rows = {n: ms * rows.get(1, ROWS[1]) / ROWS[1] for n, ms in ROWS.items()}
    facts = facts_of(Path(llm.model_path))
    read = llama_cpp.llama_model_size(llm.model) if facts is None else facts.read
    shares = [max(0.02, side.size / read) for side in sides][:2]
    head = any(side.reads_states for side in sides)
    card, share = _on_devices(llm), rows[1] * _depth_share(llm.model)
    deeper = None if card else {1: share, 8: 8 * share}
    return CostCurve.prior(rows, *shares, deeper=deeper, head=head, card=card)


def _on_devices(llm: Any) -> bool:
    """Whether most layers are on devices of this machine, where context costs next to nothing."""
    layers, most = gpu_layers(llm), llama_cpp.llama_model_n_layer(llm.model) + 1
    there = [each.kind for each in layer_devices(llm.devices)]
    return layers != 0 and not 0 < layers < most / 2 and any(kind != "RPC" for kind in there)


def _depth_share(model: Any) -> float:
    """Return the cost that one position of context adds to a row on a CPU, in units of a row without context.

    Attention does 2 * n_layer * n_embd products per position while the weights do n_params. Measured on the 135M model in three
    file types it costs 1.4 to 2.3 times that share: Q4_1 +39 %, BF16 +43 %, Q4_K_M +59 % from 64 positions to 1024.
    """
    layers, width = llama_cpp.llama_model_n_layer(model), llama_cpp.llama_model_n_embd(model)
    return 3.2 * float(layers * width) / float(max(1, llama_cpp.llama_model_n_params(model)))


# -- rows, timed once --------------------------------------------------------------------------------------------------

_KNOWN = 8  # row counts that make a curve
_ENOUGH_S, _MOST_S = 2.0, 6.0
"""Seconds of timing after which no other turn begins, and after which none goes on."""


def time_rows(llm: Any) -> dict[int, KeptTime]:
    """Time decodes of 1 to OWN_MAX rows of a loaded target whose context holds nothing.

    Each is compared with a decode of one row just before it, and the median of up to three turns counts: a machine that is slow
    for a second, as a virtual one may be, is so for both. A slow model gets fewer turns, and times of its first counts alone; one
    that cannot decode now gets none.
    """
    most = min(OWN_MAX, llama_cpp.llama_n_ctx(llm.ctx), llama_cpp.llama_n_batch(llm.ctx))
    start, singles = perf_counter(), list[float]()
    ratios: dict[int, list[float]] = {n: [] for n in range(1, most + 1)}
    with closing(Decodes(llm.ctx, most)) as rows, suppress(EngineError):
        rows.ms(1)  # this brings the weights into memory
        for _turn in range(SURE):
            for n, found in ratios.items():
                if perf_counter() - start < _MOST_S:
                    singles.append(rows.ms(1))
                    found.append(rows.ms(n) / singles[-1] if n > 1 else 1.0)
            if perf_counter() - start > _ENOUGH_S:
                break
    llama_cpp.llama_perf_context_reset(llm.ctx)
    release_workers()
    timed = {n: found for n, found in ratios.items() if found}
    return {n: KeptTime(min(singles) * median(found), len(found)) for n, found in timed.items()}


# -- what rounds taught ------------------------------------------------------------------------------------------------

MAX_CHANGE = 3.0
"""If one-row decodes take this many times the kept time, the machine was busy with something else."""

_HALF_LIFE = 30.0  # days after which what answers taught counts for half: uses change
_EVERY_S = 60.0  # seconds between two writes of a running process
_DAY_S = 86400.0


class PairFacts(msgspec.Struct, omit_defaults=True):
    """The file. Raises OptionError for impossible numbers."""

    day: float = 0.0  # when it was written, in days since 1970
    target: dict[int, KeptTime] = {}  # a decode without earlier context, by rows
    draft: dict[int, KeptTime] = {}  # a draft's step, by sequences
    temper: int = 0  # see `Acceptance`
    kinds: dict[str, Experience] = {}  # by the names that `Policies` gives them
    busy: bool = False  # whether rows were timed while other programs needed the processors

    def __post_init__(self) -> None:
        times = (*self.target.items(), *self.draft.items())
        good = all(0 < rows < 4096 and 0.0 < t.ms < 1e7 and 0 < t.seen <= SURE for rows, t in times)
        if not (good and 0.0 <= self.day < 1e6 and 0 <= self.temper < TEMPERS):
            raise OptionError("what was kept about a pair contradicts itself")

    def seen_before(self, earlier: PairFacts) -> PairFacts:
        """These facts, with those of `earlier` that they lack. A machine is slow for a while, but none is fast by chance."""
        before, one = earlier.target.get(1), self.target.get(1)
        trusted = before is None or (one is not None and one.ms <= MAX_CHANGE * before.ms)
        now = self if trusted else msgspec.structs.replace(self, target={}, draft={})
        return msgspec.structs.replace(
            now,
            target={**earlier.target, **now.target},
            draft={**earlier.draft, **now.draft},
            kinds={**earlier.kinds, **now.kinds},
        )


class PairMemory:
    """Makes the policies of a loaded pair with what earlier processes kept about it, and keeps what this one sees.

    Args:
        owner: when it goes, or the process ends, what was seen is kept.
        llm: the loaded target.
        sides: its draft and companion, in this order, as far as it has them.
        timed: whether rows of the target are timed now, if they never were.
        length, more: of `Policies`.
    """

    def __init__(
        self,
        owner: object,
        llm: Any,
        sides: Sequence[SideFile],
        length: Length,
        *,
        timed: bool,
        **more: Any,
    ) -> None:
        self._threads = int(llm.n_threads)
        self._file: Stamp | None = None
        with suppress(PyspecError):
            self._file = stamp(Path(llm.model_path))
        where = f"{self._threads} threads, {placed(llm)}, {processor()}, {engine_build()}"
        drafts = [stamp(side.path) for side in sides[:1]]
        self._name = f"pair 5, {drafts}, {where}"
        self._watch, self._written = Watch(), perf_counter()
        self._known = self._read()
        # plain rounds alone teach no more than one count
        unknown = len(self._known.target) < 2 or (self._known.busy and is_quiet())
        self._timed = time_rows(llm) if timed and unknown else {}
        self._busy = self._watch.busy(self._threads) if self._timed else self._known.busy
        self.temper = self._known.temper
        """The draft's temperature, as its engine has it now."""
        self.policies = self._begin(llm, sides, length, **more)
        weakref.finalize(owner, self.keep)

    def _begin(self, llm: Any, sides: Sequence[SideFile], length: Length, **more: Any) -> Policies:
        known = self._known
        rows = self._timed or known.target
        curve = prior_curve(llm, sides, rows)
        curve.begin_with(rows, known.draft if sides else {})
        weight = 0.5 ** (max(0.0, _today() - known.day) / _HALF_LIFE)
        taught = {name: seen.aged(weight) for name, seen in known.kinds.items()}
        learned, companion = prior_learned(sides), len(sides) > 1
        return Policies(length, curve, learned, companion=companion, taught=taught, **more)

    def keep_now_and_then(self) -> None:
        """Keep what was seen so far, once a minute: a server may run for weeks, and be killed."""
        if perf_counter() - self._written > _EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write what was seen; failures are ignored, since answers do not depend on it."""
        if sys.is_finalizing() or self._file is None:
            return
        self._written = perf_counter()
        if not (taught := self.policies.taught()):
            return
        quiet = not self._watch.busy(self._threads)
        curve = self.policies.curve
        own = PairFacts(
            _today(),
            curve.target.seen() if quiet or self._timed else {},
            curve.draft.seen() if quiet else {},
            self.temper,
            taught,
            self._busy,
        )
        self._timed = {}  # from here on, rounds that others disturbed teach no times
        now = self._read()
        if now != self._known:  # another process wrote meanwhile
            own.kinds = {
                name: seen.mixed(now.kinds[name]) if name in now.kinds else seen
                for name, seen in taught.items()
            }
        self._known = own.seen_before(now)
        remember(self._name, self._file, self._known)

    def _read(self) -> PairFacts:
        found = None if self._file is None else recall_as(self._name, self._file, PairFacts)
        return found or PairFacts()


def _today() -> float:
    return time.time() // _DAY_S
