"""Which tensor type a target should have on this machine: time, bytes and nats of each.

The same weights as several files, all loaded at once; the files take turns, so that a slow moment of the
machine does not fall on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import llama_cpp
import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.errors import MeasureError
from pyspec.measure.questions import load_questions
from pyspec.measure.report import table
from pyspec.store.fetch import CONVERSIONS, ORIGINAL, Progress, convert, fetch
from pyspec.store.manifest import Entry
from pyspec.target import TargetLlama

ROWS = (1, 4, 8)
PREFILL = 512
LOSS_BOUND, SLOWER_BOUND = 0.01, 1.03
_DEPTH = 128
_TURNS, _REPEATS = 5, 5
_READ = 2048
"""Most tokens that the nats are measured on."""


class TypeFigures(msgspec.Struct):
    """One file. Times in ms, medians over turns.

    rows: of a decode of so many rows with logits; prefill: of 512 tokens. nats: a token of the text; loss:
    over the first file's; same: share of places with the first file's first choice. pays_from: drafted
    tokens of 3 that must be accepted before a verify of 4 rows is cheaper than decoding one by one.
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
        """Accepted tokens a verify of 4 rows must bring."""
        return self.rows[4] / self.rows[1] - 1.0


def measure_types(
    files: Mapping[str, Path],
    text: bytes,
    threads: int,
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> list[TypeFigures]:
    """Figures of files of the same weights, by type; the first one is what the others are compared with.

    text: what the nats are measured on; 2,000 tokens or more tell types apart. Raises ModelInvalid or MeasureError.
    """
    models = {kind: _Model(kind, path, threads) for kind, path in files.items()}
    try:
        tokens = next(iter(models.values())).tokens(text)
        steps = _TURNS + 1 + len(models)
        for turn in range(_TURNS + 1):  # the first turn warms up
            report(turn, steps, "times of decodes")
            for model in models.values():
                model.take_times(tokens, keep=turn > 0)
        for i, model in enumerate(models.values()):
            report(_TURNS + 1 + i, steps, f"nats of {model.kind}")
            model.read(tokens[:_READ])
        return _compared(list(models.values()), files)
    finally:
        for model in models.values():
            model.close()


def best_type(found: Sequence[TypeFigures]) -> TypeFigures:
    """The type to have: the fastest of those that lose at most 0.01 nats and do not decode slower plainly.

    Fastest by the geometric mean of its times; the first file where no other fulfils both.
    """
    first = found[0]
    fine = [f for f in found if f.loss <= LOSS_BOUND and f.rows[1] <= SLOWER_BOUND * first.rows[1]]
    return min(fine, key=lambda f: float(np.mean(np.log([*f.rows.values(), f.prefill]))))


def type_table(found: Sequence[TypeFigures]) -> str:
    """The figures as Markdown, the best type marked."""
    head = ["", "MB", *(f"{n} rows ms" if n > 1 else "1 row ms" for n in ROWS), f"prefill {PREFILL} ms",
            "nats a token", "same first choice", "of 3 drafted must be accepted"]  # fmt: skip
    best = best_type(found)
    rows = [
        [
            f"{f.kind} (best here)" if f is best else f.kind,
            f"{f.size / 1e6:.0f}",
            *(f"{f.rows[n]:.1f}" for n in ROWS),
            f"{f.prefill:.0f}",
            f"{f.nats:.3f} ({f.loss:+.3f})",
            f"{100 * f.same:.1f} %",
            f"{f.pays_from:.2f}" + ("" if f.pays_from < 3 else ": never pays"),
        ]
        for f in found
    ]
    return table(head, rows)


def all_types(
    entry: Entry, threads: int, progress: Progress, report: Callable[[int, int, str], None]
) -> list[TypeFigures]:
    """Figures of a known model as it comes and as each type it can be converted to.

    The files made for this stay in the cache. Raises FetchError or MeasureError.
    """
    files = {ORIGINAL: fetch(entry, progress)}
    files |= {kind: convert(entry, kind, progress) for kind in CONVERSIONS}
    text = "\n\n".join("\n".join(question.turns) for question in load_questions())
    return measure_types(files, text.encode(), threads, report)


def _compared(models: Sequence[_Model], files: Mapping[str, Path]) -> list[TypeFigures]:
    first = models[0]
    return [
        TypeFigures(
            kind=m.kind,
            size=files[m.kind].stat().st_size,
            rows={n: median(m.times[n]) for n in ROWS},
            prefill=median(m.times[PREFILL]),
            nats=float(np.mean(m.nats)),
            loss=float(np.mean(m.nats) - np.mean(first.nats)),
            same=float(np.mean(np.array(m.choices) == np.array(first.choices))),
        )
        for m in models
    ]


class _Model:
    """One file on llama.cpp's own context."""

    def __init__(self, kind: str, path: Path, threads: int) -> None:
        self.kind = kind
        self.times: dict[int, list[float]] = {n: [] for n in (*ROWS, PREFILL)}
        self.nats: list[float] = []
        self.choices: list[int] = []
        self._llm = TargetLlama(
            str(path), n_ctx=1024, n_batch=PREFILL, n_ubatch=PREFILL, n_threads=threads,
            n_threads_batch=threads, flash_attn=True, verbose=False,
        )  # fmt: skip
        self._context: Any = self._llm.ctx
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(PREFILL, 0, 1)

    def tokens(self, text: bytes) -> list[int]:
        """The text as tokens, 576 at least."""
        tokens = list(self._llm.tokenize(text))
        return tokens * (1 + (PREFILL + 64) // max(1, len(tokens)))

    def take_times(self, tokens: Sequence[int], *, keep: bool) -> None:
        """One prefill, then a few decodes of each width after the first tokens of it."""
        found = {PREFILL: self._decode(tokens[:PREFILL], 0, logits=False)}
        for n in ROWS:
            again = [self._decode(tokens[:n], _DEPTH) for _ in range(_REPEATS)]
            found[n] = median(again)
        if keep:
            for n, ms in found.items():
                self.times[n].append(ms)

    def read(self, tokens: Sequence[int]) -> None:
        """Nats of each token given those before it in its block of 512, and the first choices."""
        for start in range(0, len(tokens) - 1, PREFILL):
            part = tokens[start : start + PREFILL]
            self._decode(part, 0)
            for i, token in enumerate(part[1:]):
                row = self._row(i)
                top = row.max()
                self.nats.append(float(top + np.log(np.exp(row - top).sum()) - row[token]))
                self.choices.append(int(row.argmax()))

    def _row(self, i: int) -> npt.NDArray[np.float64]:
        row = llama_cpp.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(row, (self._llm.n_vocab(),)).astype(np.float64)

    def _decode(self, tokens: Sequence[int], position: int, *, logits: bool = True) -> float:
        """Milliseconds of one decode at a position; what the KV held from there on is forgotten."""
        llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1)
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, logits or i == len(tokens) - 1
        start = perf_counter()
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        if status:
            raise MeasureError(f"decoding {len(tokens)} tokens with {self.kind} answered {status}")
        return 1e3 * (perf_counter() - start)

    def close(self) -> None:
        """Free the batch and the model."""
        llama_cpp.llama_batch_free(self._batch)
        self._llm.close()
