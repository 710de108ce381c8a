"""Whether flash attention pays: measured on this machine for the shape of a model's heads, once for a build and a processor.

On a CPU, llama.cpp's flash attention takes each row through all cells by itself until a decode has as many rows as a tile,
and some builds have no fast product for narrow heads. Without it, rows share one matrix product, but look at every cell of the
KV cache, also at those of other sequences. Which of the two costs less depends on heads, depth, sequences, build and processor.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import llama_cpp

from pyspec._lib import release_workers
from pyspec.errors import EngineError, PyspecError
from pyspec.store.files import Stamp, recall, remember, stamp
from pyspec.store.header import read_header
from pyspec.store.llama_log import DROP, log_to
from pyspec.store.machine import address_space_left, machine_memory, this_machine
from pyspec.store.toy import Heads, write_toy
from pyspec.store.watch import Watch, is_quiet

log = logging.getLogger("pyspec")

TILE = 64
"""Rows from which ggml's flash attention on a CPU computes whole tiles (GGML_FA_TILE_Q), cells that no row sees among them."""

DEPTHS = (64, 256, 1024)
"""Tokens of context behind which a single text is timed."""

_DEPTH_MANY = 192  # of each of many sequences: a short question and half of its answer
_PIECE, _BESIDE = 256, 128  # rows of a prompt at once: alone, and beside answers
VERIFIED = 8
"""Rows of a verify."""

_PLAIN_STEPS, _VERIFIES = 64, 16
# of an answer of 128 tokens: half of them plain, half in verifies that yield four each
_TURNS, _READ_TURNS = 4, 2
_SCORE_BYTES, _MAX_SCORES = 4, 1 / 16
# without flash attention, scores of a micro-batch by all cells and heads lie in memory; the share of it that they may take
_BUSY = "busy "


class Use(NamedTuple):
    """How a context is used. n_ctx: cells of one sequence; unified: whether all sequences share one pool; n_ubatch: rows."""

    n_ctx: int
    n_threads: int
    n_seq: int = 1
    unified: bool = True
    n_ubatch: int = 512


Deeper = tuple[float, float]
"""Milliseconds that each token of context adds to a decode of one row, and of `VERIFIED` rows."""


class Attention(NamedTuple):
    """flash: whether flash attention is on. below_tile: whether decodes beside answers should have fewer rows than its tile.

    deeper: what context adds in one layer; None where that is not known.
    """

    flash: bool
    below_tile: bool = False
    deeper: Deeper | None = None


class AttentionMs(NamedTuple):
    """Milliseconds of attention for reading prompts and answering them.

    on: with flash attention; off: without; below: with it, prompts read in decodes of fewer rows than its tile has. deeper: what
    context adds with it, and without; known for a single text.
    """

    on: float
    off: float
    below: float = math.inf
    deeper: tuple[Deeper, ...] = ()

    @property
    def ms(self) -> float:
        """The least time."""
        return min(self.on, self.off, self.below)

    @property
    def best(self) -> Attention:
        """What takes the least time."""
        flash = self.ms < self.off or self.on <= self.off
        one, verify = self.deeper[not flash] if self.deeper else (0.0, 0.0)
        deeper = (one, verify) if min(one, verify) > 0.0 else None
        return Attention(flash, flash and self.below < self.on, deeper)


def attention_of(path: Path, use: Use, flash: bool | None = None) -> Attention:
    """What is fastest for this model and use on the CPU; flash attention where it cannot be told, as in llama.cpp's programs.

    Measured when first asked. What was found while other programs needed the processors is measured again when they do not.
    flash: what was asked for, or must be.
    """
    times = _usable_times(path, use, flash) if flash is not False else None
    return Attention(flash is not False) if times is None else times.best


def streams_pay(
    path: Path, use: Use, layers: int, pass_ms: float, flash: bool | None = None
) -> bool:
    """Whether a stream for each of several sequences takes less time than a pool; False where it cannot be told.

    In a pool every row looks at the cells of all sequences. In streams, prompt rows beside answers take a pass of their own over
    the weights. pass_ms: milliseconds of a pass of one row. flash: see `attention_of`.
    """
    pool, streams = (
        _usable_times(path, use._replace(unified=unified), flash) for unified in (True, False)
    )
    if pool is None or streams is None:
        return False
    passes = use.n_seq * _depths(use)[0] / _BESIDE
    return layers * streams.ms + passes * pass_ms < layers * pool.ms


def _usable_times(path: Path, use: Use, flash: bool | None) -> AttentionMs | None:
    """Times of what the caller and memory allow; None where they cannot be measured."""
    heads = heads_of(path)
    times = times_of(heads, use) if heads is not None else None
    if heads is None or times is None:
        return None
    if flash is False:
        return times._replace(on=math.inf, below=math.inf)
    if flash or _scores(heads, use) > _MAX_SCORES * machine_memory():
        return times._replace(off=math.inf)
    return times


def flash_type(flash: bool) -> int:
    """Return llama.cpp's number for a context with flash attention or without."""
    on, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return int(on if flash else off)


def heads_of(path: Path) -> Heads | None:
    """Return the shape of a model's attention by its header: the widest layer's; None where the header does not say."""
    with contextlib.suppress(PyspecError):
        return _heads_in(path, stamp(path))
    return None


@lru_cache(maxsize=8)  # a header with a large vocabulary takes .2 s to read, and each layout asks
def _heads_in(path: Path, _state: Stamp) -> Heads | None:
    with contextlib.suppress(PyspecError, TypeError, ValueError, KeyError, ZeroDivisionError):
        header = read_header(path, weights=False)

        def most(key: str, otherwise: Any = None) -> int:
            found = header.of_arch(key)
            if isinstance(found, (int, type(None))):
                return int(otherwise if found is None else found)
            return max(map(int, header.array(f"{header.architecture}.{key}")))

        query = most("attention.head_count")
        width = most("embedding_length") // query
        key = most("attention.key_length", width)
        heads = Heads(
            query, most("attention.head_count_kv", query), key, most("attention.value_length", key)
        )
        if min(heads) > 0 and heads.query % heads.key_value == 0 and max(heads) <= _WIDEST:
            return heads
    return None


_WIDEST = 1024  # heads, or numbers of one: a header may claim anything


def _scores(heads: Heads, use: Use) -> int:
    cells = use.n_ctx * (use.n_seq if use.unified else 1)
    return _SCORE_BYTES * heads.query * use.n_ubatch * cells


# -- times -------------------------------------------------------------------------------------------------------------


def times_of(heads: Heads, use: Use) -> AttentionMs | None:
    """Return the times of this use, kept or measured now; None if llama.cpp cannot make such a model here, or without room."""
    depths = _depths(use)
    how = f"{use.n_seq} in {'a pool' if use.unified else 'streams'}, {use.n_threads} threads"
    kind = f"times of attention of {tuple(heads)} behind {depths}, {how}"
    known = recall(kind, this_machine()) or ""
    if known and not (known.startswith(_BUSY) and is_quiet()):
        return AttentionMs(**json.loads(known.removeprefix(_BUSY)))
    if address_space_left() < _ROOM:  # ggml ends the process if an allocation fails
        return None
    watch = Watch()
    times = _measure(heads, use, depths)
    if times is not None:
        doubt = _BUSY if watch.busy(use.n_threads) else ""
        remember(kind, this_machine(), doubt + json.dumps(times._asdict()))
        log.info("attention of %s, ms: %s", how, times)
    return times


_ROOM = 512 << 20
"""Bytes of address space that measuring may take."""


def _depths(use: Use) -> tuple[int, ...]:
    if use.n_seq > 1:
        return (min(_DEPTH_MANY, max(1, use.n_ctx // 2)),)
    return tuple(depth for depth in DEPTHS if depth + VERIFIED <= use.n_ctx) or (1,)


def _measure(heads: Heads, use: Use, depths: tuple[int, ...]) -> AttentionMs | None:
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


def _one(both: Sequence[_Cells], depths: Sequence[int]) -> AttentionMs:
    """Milliseconds of reading a prompt of each depth, and of an answer behind it, all added up."""
    read, spent = [0.0] * len(both), [0.0] * len(both)
    seen = []
    for depth in depths:
        while (n := min(_PIECE, depth - both[0].held[0])) > 0:
            rows = [0] * n
            read = [ms + took for ms, took in zip(read, _fastest(both, rows, _READ_TURNS))]
            for cells in both:
                cells.keep(rows)
        plain, verify = (_fastest(both, [0] * n, _TURNS) for n in (1, VERIFIED))
        answers = [_PLAIN_STEPS * p + _VERIFIES * v for p, v in zip(plain, verify)]
        spent = [ms + r + a for ms, r, a in zip(spent, read, answers)]
        seen.append(list(zip(plain, verify)))
    far = max(1, depths[-1] - depths[0])
    rises = [tuple(max(0.0, b - a) / far for a, b in zip(*ends)) for ends in zip(seen[0], seen[-1])]
    on, off = spent
    return AttentionMs(on, off, deeper=tuple((one, verify) for one, verify in rises))


def _many(both: Sequence[_Cells]) -> AttentionMs:
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
        each = [(ms - s) / n for ms, s in zip(_fastest(cells, rows, _READ_TURNS), steps)]
        return [n_seq * (first.depth * row + _PLAIN_STEPS * s) for row, s in zip(each, steps)]

    on, off = read(both, _BESIDE)
    left = TILE - 1 - len(answers)
    below = read(both[:1], left)[0] if first.use.unified and left > 0 else math.inf
    return AttentionMs(on, off, below)


def _fastest(both: Sequence[_Cells], rows: Sequence[int], turns: int) -> list[float]:
    """The least milliseconds of a decode of rows of these sequences, in turn, so that a slow moment does not hit only one."""
    times = [[cells.timed(rows) for cells in both] for _ in range(turns)]
    return [min(each) for each in zip(*times)]


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
