"""Times of attention on this machine for a shape of heads, with flash attention and without, kept for a build and a processor.

They are taken in a toy model of one layer, behind contexts of a few depths. Beyond the deepest one, each token of context adds as
much as between the last two: a decode's time is linear in the cells that it reads, and a deeper text would take seconds to read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import llama_cpp
import msgspec

from pyspec._lib import release_workers
from pyspec.errors import EngineError
from pyspec.store.files import parse, recall, remember
from pyspec.store.llama_log import DROP, log_to
from pyspec.store.machine import address_space_left, this_machine
from pyspec.store.toy import Heads, write_toy
from pyspec.store.watch import Watch, is_quiet

log = logging.getLogger("pyspec")

TILE = 64
"""Rows from which ggml's flash attention on a CPU computes whole tiles (GGML_FA_TILE_Q), cells that no row sees among them."""

DEPTHS = (64, 256, 1024)
"""Tokens of context behind which a single text is timed."""

BESIDE = 128
"""Rows of a prompt in a decode beside answers."""

VERIFIED = 8
"""Rows of a verify."""

_DEPTH_MANY = 192  # of each of many sequences: a short question and half of its answer
_PIECE = 256  # rows of a prompt in a decode of its own
_TURNS, _READ_TURNS = 4, 2
_BUSY = "busy "
_ROOM = 512 << 20  # bytes of address space that measuring may take


class Use(NamedTuple):
    """How a context is used.

    n_ctx: cells of one sequence, 0 for as many as the model was trained with; unified: whether all sequences share one pool;
    n_ubatch: rows; swa_full: whether layers with a sliding window keep the cells outside it.
    """

    n_ctx: int
    n_threads: int
    n_seq: int = 1
    unified: bool = True
    n_ubatch: int = 512
    swa_full: bool = True


class Times(NamedTuple):
    """Milliseconds in one layer behind `depth` tokens of context.

    read: of a row of a prompt; plain: of a decode of a row for each sequence that answers; verify: of a decode of `VERIFIED`
    rows, 0 where several sequences answer.
    """

    depth: float
    read: float
    plain: float
    verify: float = 0.0

    def beyond(self, other: Times, depth: float) -> Times:
        """The times at any depth, on the line through these and those of another depth; no time falls with depth."""
        share = (depth - self.depth) / (other.depth - self.depth)
        return Times(*(a + share * max(0.0, b - a) for a, b in zip(self, other)))


class AttentionTimes(NamedTuple):
    """Times with flash attention and without it, each behind contexts of growing depth.

    below: with it, of a prompt's row in decodes of fewer rows than a tile; None where answers are not beside it in one pool.
    """

    on: tuple[Times, ...]
    off: tuple[Times, ...]
    below: float | None = None


def behind(times: Sequence[Times], depth: float) -> Times:
    """Return the times at a depth: between two that were measured, or by the line through the two nearest ones."""
    if len(times) == 1:
        return times[0]
    last = len(times) - 2
    i = next((i for i in range(last) if depth <= times[i + 1].depth), last)
    return times[i].beyond(times[i + 1], max(depth, times[0].depth))


def times_of(heads: Heads, use: Use) -> AttentionTimes | None:
    """Return the times for this use, kept or measured now; None if llama.cpp cannot make such a model here, or without room.

    What was found while other programs needed the processors is measured again when they do not.
    """
    depths = _depths(use)
    how = f"{use.n_seq} in {'a pool' if use.unified else 'streams'}, {use.n_threads} threads"
    kind = f"attention's times of {tuple(heads)} behind {depths}, {how}"
    known = recall(kind, this_machine()) or ""
    if known and not (known.startswith(_BUSY) and is_quiet()):
        with contextlib.suppress(ValueError):  # as an earlier version kept them
            return parse(known.removeprefix(_BUSY), AttentionTimes)
    if address_space_left() < _ROOM:  # ggml ends the process if an allocation fails
        return None
    watch = Watch()
    timed = _measure(heads, use, depths)
    if timed is not None:
        doubt = _BUSY if watch.busy(use.n_threads) else ""
        remember(kind, this_machine(), doubt + msgspec.json.encode(timed).decode())
        log.info("attention of %s, ms: %s", how, timed)
    return timed


def depth_of_many(use: Use) -> int:
    """Return the tokens of context behind which each of many sequences is timed."""
    return min(_DEPTH_MANY, max(1, use.n_ctx // 2))


def _depths(use: Use) -> tuple[int, ...]:
    if use.n_seq > 1:
        return (depth_of_many(use),)
    return tuple(depth for depth in DEPTHS if depth + VERIFIED <= use.n_ctx) or (1,)


def _measure(heads: Heads, use: Use, depths: tuple[int, ...]) -> AttentionTimes | None:
    with tempfile.TemporaryDirectory() as folder, log_to(DROP):
        path = Path(folder, "toy.gguf")
        write_toy(path, heads)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, False
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            return None
        both: list[_Cells] = []
        try:
            both += (_Cells(model, use, depths[-1], flash=flash) for flash in (True, False))
            return _many(both) if use.n_seq > 1 else _one(both, depths)
        except EngineError:  # such heads, or so little memory
            return None
        finally:
            for cells in both:
                cells.close()
            llama_cpp.llama_model_free(model)
            release_workers()


def _one(both: Sequence[_Cells], depths: Sequence[int]) -> AttentionTimes:
    """Times of a single text behind each depth; rows of a prompt see half of their own piece as well."""
    seen = []
    for depth in depths:
        while (n := min(_PIECE, depth - both[0].held[0])) > 0:
            for cells in both:
                cells.keep([0] * n)
        read = [ms / _PIECE for ms in _fastest(both, [0] * _PIECE, _READ_TURNS)]
        plain, verify = (_fastest(both, [0] * n, _TURNS) for n in (1, VERIFIED))
        seen.append([Times(depth, *each) for each in zip(read, plain, verify)])
    on, off = zip(*seen)
    return AttentionTimes(on, off)


def _many(both: Sequence[_Cells]) -> AttentionTimes:
    """The same for many sequences that answer, a row each, beside the last one, whose prompt is read.

    A prompt's row takes what the decode takes longer for it than the answers alone.
    """
    first, n_seq = both[0], both[0].use.n_seq
    answers = list(range(n_seq - 1))
    for seq in answers:
        for cells in both:
            cells.keep([seq] * cells.depth)
    for cells in both:  # half of the prompt is read
        cells.keep([n_seq - 1] * max(1, cells.depth // 2))
    steps = _fastest(both, answers, _TURNS)

    def read(cells: Sequence[_Cells], n: int) -> list[float]:
        rows = [*answers, *[n_seq - 1] * n]
        return [(ms - s) / n for ms, s in zip(_fastest(cells, rows, _READ_TURNS), steps)]

    on, off = (Times(first.depth, *each) for each in zip(read(both, BESIDE), steps))
    left = TILE - 1 - len(answers)
    below = read(both[:1], left)[0] if first.use.unified and left > 0 else None
    return AttentionTimes((on,), (off,), below)


def _fastest(both: Sequence[_Cells], rows: Sequence[int], turns: int) -> list[float]:
    """The least milliseconds of a decode of rows of these sequences, in turn, so that a slow moment does not hit only one."""
    times = [[cells.timed(rows) for cells in both] for _ in range(turns)]
    return [min(each) for each in zip(*times)]


def flash_type(flash: bool) -> int:
    """Return llama.cpp's number for a context with flash attention or without."""
    on, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return int(on if flash else off)


class _Cells:
    """A context of the toy model. depth: tokens that each sequence will hold; held: those that it holds."""

    def __init__(self, model: Any, use: Use, depth: int, *, flash: bool) -> None:
        params = llama_cpp.llama_context_default_params()
        beyond = max(VERIFIED, _PIECE)
        params.n_ctx, params.n_seq_max = use.n_seq * (depth + beyond), use.n_seq
        params.n_batch = params.n_ubatch = _PIECE + use.n_seq
        params.n_threads = params.n_threads_batch = use.n_threads
        params.kv_unified, params.no_perf = use.unified, True
        params.flash_attn_type = flash_type(flash)
        self.use, self.depth, self.held = use, depth, [0] * use.n_seq
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise EngineError("no context for timing attention")
        self._memory = llama_cpp.llama_get_memory(self._context)

    def timed(self, rows: Sequence[int]) -> float:
        """Milliseconds of a decode of a row of each of these sequences behind what it holds; nothing of it stays."""
        ms = self._decode(rows)
        for seq in set(rows):
            llama_cpp.llama_memory_seq_rm(self._memory, seq, self.held[seq], -1)
        return ms

    def keep(self, rows: Sequence[int]) -> None:
        """Decode a row of each of these sequences, which then hold it."""
        self._decode(rows)
        for seq in rows:
            self.held[seq] += 1

    def _decode(self, rows: Sequence[int]) -> float:
        batch, at = llama_cpp.llama_batch_init(len(rows), 0, 1), list(self.held)
        batch.n_tokens = len(rows)
        for i, seq in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = 0, at[seq], i == len(rows) - 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            at[seq] += 1
        start = perf_counter()
        status = llama_cpp.llama_decode(self._context, batch)
        ms = (perf_counter() - start) * 1e3
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise EngineError(f"timing attention: llama_decode returned {status}")
        return ms

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
