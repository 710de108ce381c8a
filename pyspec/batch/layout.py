"""How many sequences at once, and where their KV cells lie: in one pool, or in streams, one a sequence.

In a pool, rows of sequences that differ in number go through one pass, and a shared prefix takes its
cells once; but attention looks at the mask of every cell for every row. In streams a row meets its
own sequence alone; but a batch of unequal rows falls apart into several passes, so nothing is drafted
there, and every sequence takes as many cells as the longest.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import llama_cpp

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS_FROM = 8
"""Sequences from which streams without drafts are faster than a pool with lookup, on a CPU."""

WASTE = 3
"""Times the cells of a pool that streams may take."""

STEP = 256
"""llama.cpp rounds contexts, and each stream, up to it."""


_WORTH = 0.03
# what more sequences have to gain to be worth their memory


class Layout(NamedTuple):
    """cells: of each context, all sequences together. each: those of one stream, 0 in a pool."""

    cells: int
    each: int = 0


def lay_out(
    n_slots: int, n_ctx: int, needs: Sequence[int], *, must_pool: bool, must_stream: bool = False
) -> Layout:
    """Cells for `n_slots` records at once.

    n_ctx: positions a sequence may use. needs: cells that the largest records take, largest first.
    Streams for many records of about one length, unless there must be a pool, as for drafts, or streams.
    """
    pool = padded(max(sum(needs[:n_slots]), n_ctx))
    each = padded(needs[0]) if needs else 0
    if must_stream:
        return Layout(each * n_slots, each)
    if must_pool or n_slots < STREAMS_FROM or not 0 < n_slots * each <= WASTE * pool:
        return Layout(pool)
    return Layout(each * n_slots, each)


def padded(cells: int) -> int:
    """The context that llama.cpp makes of so many cells."""
    return -(-cells // STEP) * STEP


def best_parallel(times: Sequence[float], most: int = 16) -> int:
    """How many sequences at once are worth it; `times[n]` is the target's time for n rows.

    The smallest power of two, at most `most`, than which none gives 3 % more tokens a second: a step that gains
    nothing may lead to one that does, where two rows cost as much as two single ones and eight as much as four.
    """
    sizes = [1 << k for k in range(most.bit_length()) if 1 << k <= min(most, len(times) - 1)]
    best = max(n / times[n] for n in sizes)
    return next(n for n in sizes if (1 + _WORTH) * n / times[n] >= best)


_SHARE = 0.25
# of this machine's memory that KV cells may take unless more sequences were asked for


def memory_for(target: Any, n_ctx: int) -> int:
    """How many sequences of n_ctx cells a quarter of this machine's memory holds, at 16 bits an entry."""
    model = target.model
    heads = max(1, llama_cpp.llama_model_n_head(model))
    width = llama_cpp.llama_model_n_embd(model) * llama_cpp.llama_model_n_head_kv(model) // heads
    cell = 4 * max(1, width) * llama_cpp.llama_model_n_layer(model)
    if not hasattr(os, "sysconf"):
        return 1 << 30
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_SHARE * memory / (cell * padded(n_ctx)))
