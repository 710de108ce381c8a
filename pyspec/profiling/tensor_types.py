"""Finds the best tensor type for a target on this machine.

Types are measured as several files of the same weights, all loaded at once; the files take turns, so a slow moment of the machine
does not fall on one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.engine.timing import ready, verify_ms
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.policy.types import Floats
from pyspec.profiling.logits import nats_of, rows_after
from pyspec.profiling.questions import Report, load_questions
from pyspec.screen.tables import TextTable, table_of
from pyspec.store.fetch import CONVERSIONS, ORIGINAL, Progress, convert, fetch
from pyspec.store.sources import Entry
from pyspec.store.watch import Watch

log = logging.getLogger("pyspec")

ROWS = (1, 4, 8)
PREFILL = 512
LOSS_BOUND, SLOWER_BOUND = 0.01, 1.03
_DEPTH = 128
_TURNS, _REPEATS = 5, 5
_READ = 2048
"""Most tokens for measuring nats."""


class TypeFigures(msgspec.Struct):
    """One file. Times in ms, medians over turns.

    rows: time of a decode of this many rows with logits; prefill: time of 512 tokens; nats: per token of the text; loss: nats
    over the first file's; same: share of places with the first file's top choice; pays_from: how many of 3 drafted tokens must be
    accepted before a verify of 4 rows is cheaper than decoding one by one.
    """

    kind: str
    size: int
    rows: dict[int, float]
    prefill: float
    nats: float
    loss: float
    same: float

    @property
    def pays_from(self) -> float:
        """Accepted tokens that a verify of 4 rows must bring."""
        return self.rows[4] / self.rows[1] - 1.0


def measure_types(
    files: Mapping[str, Path], text: bytes, threads: int, report: Report = lambda *_: None
) -> list[TypeFigures]:
    """Measure files of the same weights, by type; the others are compared with the first.

    text: what nats are measured on; 2,000 tokens or more tell types apart. Raises ModelInvalid.
    """
    with ExitStack() as opened:
        models = {kind: opened.enter_context(_open(path, threads)) for kind, path in files.items()}
        tokens = next(iter(models.values())).tokenize(text)
        tokens *= 1 + (PREFILL + 64) // max(1, len(tokens))
        steps = _TURNS + 1 + len(models)
        times: dict[str, list[dict[int, float]]] = {kind: [] for kind in models}
        for turn in range(_TURNS + 1):
            report(turn, steps, "times of decodes")
            for kind, llm in models.items():
                times[kind].append(_times(llm, tokens))
        read = {}
        for i, (kind, llm) in enumerate(models.items(), _TURNS + 1):
            report(i, steps, f"nats of {kind}")
            read[kind] = _read(llm, tokens[:_READ])
    first_nats, first_choices = next(iter(read.values()))
    found = []
    for kind, path in files.items():
        _, *turns = times[kind]  # the first one warms up
        medians = {n: median(turn[n] for turn in turns) for n in turns[0]}
        prefill = medians.pop(PREFILL)
        nats, choices = read[kind]
        loss, same = nats.mean() - first_nats.mean(), (choices == first_choices).mean()
        figures = (float(value) for value in (nats.mean(), loss, same))
        found.append(TypeFigures(kind, path.stat().st_size, medians, prefill, *figures))
    return found


def _open(path: Path, threads: int) -> SpeculativeLlama:
    return SpeculativeLlama(
        str(path), draft="none", companion="none", n_ctx=1024, n_batch=PREFILL, n_ubatch=PREFILL,
        n_threads=threads, verbose=False,
    )  # fmt: skip


def _times(llm: SpeculativeLlama, tokens: Sequence[int]) -> dict[int, float]:
    """Milliseconds of one prefill, and of some verifies of each width after its first tokens."""
    engine = llm.assembly.engine
    engine.set_tokens(0, ())
    start = perf_counter()
    ready(engine, tokens, PREFILL + 1, chunk=PREFILL)
    found = {PREFILL: 1e3 * (perf_counter() - start)}
    for n in ROWS:
        found[n] = median(verify_ms(engine, tokens, _DEPTH, n) for _ in range(_REPEATS))
    return found


def _read(llm: SpeculativeLlama, tokens: Sequence[int]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Nats of each token given those before it in its block of 512, and the top choices."""
    nats, choices = [], []
    for start in range(0, len(tokens) - 1, PREFILL):
        first, *rest = tokens[start : start + PREFILL]
        for token, row in zip(rest, rows_after(llm, [first], rest), strict=True):
            nats.append(nats_of(row, token))
            choices.append(row.argmax())
    return np.array(nats), np.array(choices)


def best_type(found: Sequence[TypeFigures]) -> TypeFigures:
    """The type to use: the fastest of those that lose at most 0.01 nats and do not decode slower plainly.

    Fastest by the geometric mean of its times; the first file if no other qualifies.
    """
    first = found[0]
    fine = [f for f in found if f.loss <= LOSS_BOUND and f.rows[1] <= SLOWER_BOUND * first.rows[1]]
    return min(fine, key=lambda f: float(np.mean(np.log([*f.rows.values(), f.prefill]))))


def type_table(found: Sequence[TypeFigures]) -> TextTable:
    """The figures, with the best type marked."""
    best = best_type(found)
    return table_of(found, {
        "": lambda f: f"{f.kind} (best here)" if f is best else f.kind,
        "MB": lambda f: f"{f.size / 1e6:.0f}",
        **{f"{n} rows ms" if n > 1 else "1 row ms": partial(_ms, rows=n) for n in ROWS},
        f"prefill {PREFILL} ms": lambda f: f"{f.prefill:.0f}",
        "nats a token": lambda f: f"{f.nats:.3f} ({f.loss:+.3f})",
        "same first choice": lambda f: f"{100 * f.same:.1f} %",
        "of 3 drafted must be accepted": lambda f: f"{f.pays_from:.2f}" + ": never pays" * (f.pays_from >= 3),
    })  # fmt: skip


def _ms(found: TypeFigures, rows: int) -> str:
    return f"{found.rows[rows]:.1f}"


def all_types(entry: Entry, threads: int, progress: Progress, report: Report) -> list[TypeFigures]:
    """Measure a known model as it is published and as each type it can be converted to.

    The files made for this stay in the cache. If other programs used the machine meanwhile, a warning is logged. Raises
    FetchError.
    """
    files = {ORIGINAL: fetch(entry, progress)}
    files |= {kind: convert(entry, kind, progress) for kind in CONVERSIONS}
    text = "\n\n".join("\n".join(question.turns) for question in load_questions())
    watch = Watch()
    found = measure_types(files, text.encode(), threads, report)
    if watch.busy(threads):
        log.warning(
            "meanwhile other programs used %.1f processors, so these times say little: run it again when the machine is idle",
            watch.others(),
        )
    return found
