"""Whether flash attention pays: by times of attention on this machine, for the shape of a model's heads and windows.

On a CPU, llama.cpp's flash attention takes each row through all cells by itself until a decode has as many rows as a tile,
and some builds have no fast product for narrow heads. Without it, rows share one matrix product, but look at every cell of the
KV cache, also at those of other sequences and at those that a sliding window hides. Which of the two costs less depends on heads,
windows, depth, sequences, build and processor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyspec.errors import PyspecError
from pyspec.store.attention_times import (
    BESIDE,
    DEPTHS,
    VERIFIED,
    AttentionTimes,
    Times,
    Use,
    behind,
    depth_of_many,
    times_of,
)
from pyspec.store.files import Stamp, stamp
from pyspec.store.gguf import Array, Header
from pyspec.store.header import read_header
from pyspec.store.machine import machine_memory
from pyspec.store.toy import Heads

_PLAIN_STEPS, _VERIFIES = 64, 16
# of an answer of 128 tokens: half of them plain, half in verifies that yield four each
_PIECES = 8  # of a prompt, each read at the cost of its middle
_DEEPER = DEPTHS[-1] // DEPTHS[-2]  # a context's depths go on as those that are measured
_SCORE_BYTES, _MAX_SCORES = 4, 1 / 16
# without flash attention, scores of a micro-batch by all cells and heads lie in memory; the share of it that they may take

_PERIODS = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5,
    "gpt-oss": 2, "llama4": 4, "mellum": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
# Of so many layers one sees everything, where the header does not say how many (llama.cpp, src/models). Other architectures
# ignore a window in the header, or have it in no layer.


class Window(NamedTuple):
    """size: tokens that a layer with a sliding window sees. share: of the layers that have one."""

    size: int
    share: float


class Shape(NamedTuple):
    """What attention's time depends on: the heads, the window of some layers, and the tokens of context in training."""

    heads: Heads
    window: Window | None = None
    n_ctx: int = 0


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
    """Milliseconds of a mean layer for reading prompts and answering them.

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

    flash: what was asked for, or must be.
    """
    found = _usable_ms(path, use, flash) if flash is not False else None
    return Attention(flash is not False) if found is None else found.best


def streams_pay(
    path: Path, use: Use, layers: int, pass_ms: float, flash: bool | None = None
) -> bool:
    """Whether a stream for each of several sequences takes less time than a pool; False where it cannot be told.

    In a pool every row looks at the cells of all sequences. In streams, prompt rows beside answers take a pass of their own over
    the weights. pass_ms: milliseconds of a pass of one row. flash: see `attention_of`.
    """
    pool, streams = (
        _usable_ms(path, use._replace(unified=unified), flash) for unified in (True, False)
    )
    if pool is None or streams is None:
        return False
    passes = use.n_seq * depth_of_many(use) / BESIDE
    return layers * streams.ms + passes * pass_ms < layers * pool.ms


def _usable_ms(path: Path, use: Use, flash: bool | None) -> AttentionMs | None:
    """Times of what the caller and memory allow; None where they cannot be measured."""
    shape = shape_of(path)
    if shape is None:
        return None
    use = use._replace(n_ctx=use.n_ctx or shape.n_ctx)
    timed = times_of(shape.heads, use)
    if timed is None:
        return None
    found = weigh(timed, use, shape.window)
    if flash is False:
        return found._replace(on=math.inf, below=math.inf)
    if flash or _scores(shape.heads, use) > _MAX_SCORES * machine_memory():
        return found._replace(off=math.inf)
    return found


def _scores(heads: Heads, use: Use) -> int:
    cells = use.n_ctx * (use.n_seq if use.unified else 1)
    return _SCORE_BYTES * heads.query * use.n_ubatch * cells


# -- what a use takes --------------------------------------------------------------------------------------------------


def weigh(timed: AttentionTimes, use: Use, window: Window | None) -> AttentionMs:
    """Return what a mean layer takes for prompts of each depth that fits, and for an answer behind each, all added up."""
    size, share = window or Window(0, 0.0)
    hidden = size if share else math.inf  # flash attention passes over what no row sees
    masked = math.inf if use.swa_full else hidden
    depths = list(_depths(use, timed.on[0].depth))

    def all_(times: tuple[Times, ...], seen: float) -> float:
        everything = (1.0 - share) * sum(_spent(times, depth, math.inf) for depth in depths)
        return everything + (share and share * sum(_spent(times, depth, seen) for depth in depths))

    on, off = use.n_seq * all_(timed.on, hidden), use.n_seq * all_(timed.off, masked)
    if use.n_seq > 1:
        less = [each._replace(read=timed.below) for each in timed.on if timed.below is not None]
        return AttentionMs(on, off, use.n_seq * all_(tuple(less), hidden) if less else math.inf)
    kinds = ((timed.on, hidden), (timed.off, masked))
    return AttentionMs(on, off, deeper=tuple(_rises(*kind, share) for kind in kinds))


def _depths(use: Use, depth: float) -> Iterator[float]:
    yield depth
    while use.n_seq == 1 and (depth := depth * _DEEPER) + VERIFIED <= use.n_ctx:
        yield depth


def _spent(times: tuple[Times, ...], depth: float, limit: float) -> float:
    """Milliseconds of a prompt and an answer of which no row sees more than `limit` cells."""
    middles = [(i + 0.5) * depth / _PIECES for i in range(_PIECES)]
    reading = sum(behind(times, min(middle, limit)).read for middle in middles)
    at = behind(times, min(depth, limit))
    return depth / _PIECES * reading + _PLAIN_STEPS * at.plain + _VERIFIES * at.verify


def _rises(times: tuple[Times, ...], seen: float, share: float) -> Deeper:
    """What each token of context adds, in a mean layer."""
    first, last = times[0], times[-1]
    far = max(1.0, last.depth - first.depth)
    # within a window it adds for a short while only
    see = 1.0 if math.isinf(seen) else 1.0 - share
    return (
        see * max(0.0, last.plain - first.plain) / far,
        see * max(0.0, last.verify - first.verify) / far,
    )


# -- the shape ---------------------------------------------------------------------------------------------------------


def shape_of(path: Path) -> Shape | None:
    """Return the shape of a model's attention by its header: the widest layer's heads; None where the header does not say."""
    with contextlib.suppress(PyspecError):
        return _shape_in(path, stamp(path))
    return None


@lru_cache(maxsize=8)  # a header with a large vocabulary takes .2 s to read, and each layout asks
def _shape_in(path: Path, _state: Stamp) -> Shape | None:
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
            return Shape(heads, _window(header), most("context_length", 0))
    return None


_WIDEST = 1024  # heads, or numbers of one: a header may claim anything


def _window(header: Header) -> Window | None:
    """The window of some layers, by their pattern: a flag for each, or of how many one sees everything."""
    size, key = header.of_arch("attention.sliding_window"), "attention.sliding_window_pattern"
    pattern = header.of_arch(key) or _PERIODS.get(header.architecture)
    if isinstance(pattern, Array):
        share = float(np.mean(header.array(f"{header.architecture}.{key}") != 0))
    else:
        share = 1.0 - 1.0 / int(pattern) if isinstance(pattern, int) and pattern > 0 else 0.0
    return Window(size, share) if isinstance(size, int) and size > 0 and share > 0.0 else None
