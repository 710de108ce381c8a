"""Does converting a target pay? Paired times of the same weights in several tensor types.

    python bench/convert.py FILE.gguf OTHER.gguf ... [--rounds 9] [--threads 2] [--only TASK]

For each file, in one process: one-token decode (at a context of 256 tokens), prefill of 512 tokens
(a batch with logits for its last row only), verify-like batches of 4 and 8 rows with logits, and
one decode of 32 sequences with one token each. The files take turns inside every round, so a busy
machine slows all of them; the table has medians, and the ratio columns are medians of per-round
ratios to the first file (above 1 means faster than the first). "best" is the fastest time of all
rounds: what the machine gives when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_cpp import llama_cpp as lc

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT = 256
SEQUENCES = 32
PREFILL = 512


class Model:
    """One file with a context that holds 32 sequences."""

    def __init__(self, path: Path, threads: int) -> None:
        params = lc.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model: Any = lc.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"cannot load {path}")
        options = lc.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 8192, PREFILL, PREFILL
        options.n_seq_max, options.kv_unified = SEQUENCES, True
        options.n_threads = options.n_threads_batch = threads
        self.context: Any = lc.llama_init_from_model(self.model, options)
        self.memory = lc.llama_get_memory(self.context)
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(PREFILL, 0, 1)
        self.filled = False
        self.random = np.random.default_rng(1)

    def decode(self, rows: list[tuple[int, int]], logits: bool = True) -> float:
        """Decodes rows of (sequence, position) with random tokens; returns milliseconds."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position) in enumerate(rows):
            batch.token[i] = int(self.random.integers(0, self.n_vocab))
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits or i == len(rows) - 1
        start = time.perf_counter()
        if lc.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_synchronize(self.context)
        return (time.perf_counter() - start) * 1e3

    def cut(self, sequence: int, position: int) -> None:
        """Forgets a sequence from `position` on."""
        lc.llama_memory_seq_rm(self.memory, sequence, position, -1)

    def fill(self) -> None:
        """Puts CONTEXT tokens into sequence 0 and shares them with all others."""
        self.decode([(0, p) for p in range(CONTEXT)], logits=False)
        for sequence in range(1, SEQUENCES):
            lc.llama_memory_seq_cp(self.memory, 0, sequence, 0, CONTEXT)
        self.filled = True

    def rows(self, n: int) -> float:
        """Milliseconds of one decode of `n` rows of sequence 0 after CONTEXT tokens."""
        took = self.decode([(0, CONTEXT + i) for i in range(n)])
        self.cut(0, CONTEXT)
        return took

    def sequences(self) -> float:
        """Milliseconds of one decode of one row for each of 32 sequences."""
        took = self.decode([(s, CONTEXT) for s in range(SEQUENCES)])
        for sequence in range(SEQUENCES):
            self.cut(sequence, CONTEXT)
        return took

    def prefill(self) -> float:
        """Milliseconds of a prefill of 512 tokens into an empty sequence."""
        lc.llama_memory_clear(self.memory, data=True)
        took = self.decode([(0, p) for p in range(PREFILL)], logits=False)
        lc.llama_memory_clear(self.memory, data=True)
        self.filled = False
        return took


REPEATS = {"decode 1": 15, "rows 4": 7, "rows 8": 5, "32 seq": 3, "prefill 512": 1}
TASKS: dict[str, Callable[[Model], float]] = {
    "decode 1": lambda m: m.rows(1),
    "rows 4": lambda m: m.rows(4),
    "rows 8": lambda m: m.rows(8),
    "32 seq": lambda m: m.sequences(),
    "prefill 512": lambda m: m.prefill(),
}


def measure(models: list[Model], rounds: int, only: list[str]) -> dict[str, list[list[float]]]:
    """Times by task, file and round; each time is the median of a few repeats (prefill: one)."""
    times: dict[str, list[list[float]]] = {task: [[] for _ in models] for task in only}
    for number in range(rounds + 1):  # the first round warms up and is dropped
        order = list(enumerate(models))
        for i, model in order if number % 2 else reversed(order):
            for task in only:
                if not model.filled and task != "prefill 512":
                    model.fill()
                took = statistics.median(TASKS[task](model) for _ in range(REPEATS[task]))
                if number:
                    times[task][i].append(took)
    return times


def main() -> None:
    """Prints the table, and writes the raw times when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(TASKS), help="repeatable")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    silent = lc.llama_log_callback(lambda _level, _text, _data: None)
    lc.llama_log_set(silent, None)
    lc.llama_backend_init()
    models = [Model(path, options.threads) for path in options.files]
    times = measure(models, options.rounds, options.only or list(TASKS))
    width = max(len(path.name) for path in options.files)
    print(" " * width, *(f"{task:>12} {'best':>8} {'x':>5}" for task in times))
    for i, path in enumerate(options.files):
        cells = []
        for by_file in times.values():
            ratio = statistics.median(a / b for a, b in zip(by_file[0], by_file[i], strict=True))
            middle, best = statistics.median(by_file[i]), min(by_file[i])
            cells.append(f"{middle:9.2f} ms {best:8.2f} {ratio:5.2f}")
        print(f"{path.name:<{width}}", *cells)
    if options.json:
        names = [path.name for path in options.files]
        options.json.write_text(json.dumps({"files": names, "milliseconds": times}, indent=1))


if __name__ == "__main__":
    main()
