"""The time of a decode by its rows, with flash attention and without it, at several depths; by llama_cpp alone.

    python bench/card/curves.py MODEL OUT.jsonl [--depths 64,1000,4000] [--rows 1,2,4,8,16,32,64]

A cell is a setting and a depth: one line of OUT.jsonl with the median milliseconds by rows of one sequence, whose row counts take
turns, and the milliseconds that the prompt took. Cells that OUT.jsonl has are not measured again; none begins after --until.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp
from common import arguments
from measure.contenders import PlainLlama
from measure.records import commit, machine
from sequences import append, measured

OPTIONS = {
    "depths": "64,1000,4000", "rows": "1,2,4,8,16,32,64", "repeat": 7, "gpu_layers": -1, "threads": 0, "until": 0.0,
}  # fmt: skip
SETTINGS = {"on": True, "off": False}


def decode(llm: Any, tokens: Sequence[int]) -> float:
    """Decode these rows, the last one's logits computed for all of them; milliseconds until they are there."""
    batch = llm._batch  # noqa: SLF001 - llama_cpp has no public way to ask for the logits of all rows
    start = time.perf_counter()
    batch.set_batch(batch=list(tokens), n_past=llm.n_tokens, logits_all=True)
    llm._ctx.decode(batch)  # noqa: SLF001 - as above
    llama_cpp.llama_synchronize(llm.ctx)
    return 1e3 * (time.perf_counter() - start)


def curve(llm: Any, depth: int, rows: Sequence[int], repeat: int) -> dict[str, Any]:
    """Read `depth` tokens, then time decodes behind them; the first turn is not counted."""
    words = [*range(llm.n_vocab() // 4, llm.n_vocab())][: max(200, *rows)]
    words *= 1 + max(rows) // len(words)
    text = (words * (1 + depth // len(words)))[:depth]
    llm.reset()
    llm._ctx.kv_cache_clear()  # noqa: SLF001 - as above
    start = time.perf_counter()
    llm.eval(text)
    llama_cpp.llama_synchronize(llm.ctx)
    read = 1e3 * (time.perf_counter() - start)
    found: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(repeat + 1):
        for n, times in found.items():
            times.append(decode(llm, words[:n]))
            llm._ctx.kv_cache_seq_rm(-1, depth, -1)  # noqa: SLF001 - as above
    return {"read_ms": read, "ms": {str(n): median(times[1:]) for n, times in found.items()}}


def opened(options: Namespace, flash: bool, depth: int) -> Any:
    """The model with room for the longest depth."""
    threads = options.threads or None
    return PlainLlama(
        options.model, n_ctx=depth + 128, n_gpu_layers=options.gpu_layers, flash_attn=flash, n_threads=threads,
        n_threads_batch=threads, verbose=False,
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Measure the cells that are missing."""
    options = arguments(__doc__, words, "model", "out", **OPTIONS)
    out, until = Path(options.out), options.until or float("inf")
    depths, rows = ([int(n) for n in told.split(",")] for told in (options.depths, options.rows))
    known = {(cell["flash"], cell["depth"]) for cell in measured(out)}
    for flash, on in SETTINGS.items():
        missing = [depth for depth in depths if (flash, depth) not in known]
        if not missing or time.time() >= until:
            continue
        llm = opened(options, on, max(depths))
        for depth in missing:
            if time.time() < until:
                cell = {"flash": flash, "depth": depth, **curve(llm, depth, rows, options.repeat)}
                append(out, cell | {"machine": machine(), "commit": commit()})
                print(cell, file=sys.stderr, flush=True)
        llm.close()


if __name__ == "__main__":
    main()
