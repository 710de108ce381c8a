"""Whether flash attention pays: timed once on this machine, for the shape of a model's heads and windows.

On a CPU, llama.cpp's flash attention takes each row through all cells by itself until a decode has as many rows as a tile,
and some builds have no fast product for narrow heads. Without it, rows share one matrix product, but look at every cell of the
KV cache, also at those that a sliding window hides. Which of the two costs less depends on heads, windows, depth, build and
processor, but not on weights. So a model of one layer with random weights tells it, a file of a few hundred kilobytes.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from pyspec._lib import DROP, log_to, release_workers
from pyspec.errors import EngineError
from pyspec.machine import Heads, Shape, Window
from pyspec.machine.files import recall, remember
from pyspec.machine.machine import Watch, address_space_left, is_quiet, machine_memory, this_machine

log = logging.getLogger("pyspec")

DEEPEST = 4096  # tokens of context behind which attention is timed, at most: a deeper text would take seconds to read
_ANSWER = 128  # tokens of an answer, which are weighed against the reading of a prompt as deep as the context
_CHUNK = 256  # rows of a prompt in a decode
_CHUNK_TURNS, _ROW_TURNS = 2, 8
_ROOM = 1 << 30  # bytes of address space that measuring may take
_SCORE_BYTES, _MAX_SCORES = 4, 1 / 16
# without flash attention, scores of a micro-batch by all cells and heads lie in memory; the share of it that they may take
_BUSY = "busy "  # before a choice that was made while other programs needed the processors


class Times(NamedTuple):
    """Milliseconds of decodes with flash attention and without it: of a chunk of a prompt, and of a row of an answer."""

    chunk: tuple[float, float]
    row: tuple[float, float]


def flash_type(flash: bool) -> int:
    """Return llama.cpp's number for a context with flash attention or without."""
    on, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return int(on if flash else off)


def flash_pays(
    shape: Shape | None, n_ctx: int, n_threads: int, *, n_ubatch: int = 512, swa_full: bool = True
) -> bool:
    """Whether flash attention is faster for a model on the CPU; True where that cannot be told, as in llama.cpp's programs.

    What was found while other programs needed the processors is measured again when they do not.

    shape: None where the header does not say it. n_ctx: cells of a sequence, 0 for as many as the model was trained with.
    swa_full: whether layers with a sliding window keep the cells outside it.
    """
    if shape is None:
        return True
    n_ctx = n_ctx or shape.n_ctx
    if _SCORE_BYTES * shape.heads.query * n_ubatch * n_ctx > _MAX_SCORES * machine_memory():
        return True
    depth = max(1, min(n_ctx, DEEPEST))
    kind = f"flash attention of {shape[:2]} behind {depth}, {n_threads} threads, {swa_full=}"
    known = recall(kind, this_machine()) or ""
    chosen = known.removeprefix(_BUSY)
    if chosen not in ("on", "off") or (chosen != known and is_quiet()):
        watch, window = Watch(), shape.window
        depths = {depth, min(window.size, depth)} if window.share else {depth}
        times = _measure(shape.heads, sorted(depths), n_threads)
        if times is None:
            return True
        on, off = weigh(times, window, swa_full=swa_full)
        log.info("attention behind %d tokens: %.1f ms with flash, %.1f without", depth, on, off)
        chosen = "on" if on <= off else "off"
        remember(kind, this_machine(), _BUSY * watch.busy(n_threads) + chosen)
    return chosen == "on"


def weigh(times: dict[int, Times], window: Window, *, swa_full: bool) -> tuple[float, float]:
    """Return what a mean layer takes for a prompt and an answer, with flash attention and without.

    times: by cells that rows see, those of the whole context last, and those of a window first if some layers have one.
    """
    depth, seen = max(times), min(times)

    def spent(cells: int, i: int) -> float:
        reads = depth / min(_CHUNK, depth) * (1.0 - cells / (2.0 * depth))
        # of the first tokens of a prompt, rows see less
        return reads * times[cells].chunk[i] + _ANSWER * times[cells].row[i]

    on, off = (  # flash attention passes over what no row sees
        (1.0 - window.share) * spent(depth, i) + window.share * spent(cells, i)
        for i, cells in enumerate((seen, depth if swa_full else seen))
    )
    return on, off


def _measure(heads: Heads, depths: list[int], n_threads: int) -> dict[int, Times] | None:
    """Time a toy model; None if llama.cpp cannot make one with such heads here, or without room."""
    if address_space_left() < _ROOM:  # ggml ends the process if an allocation fails
        return None
    with tempfile.TemporaryDirectory() as folder, log_to(DROP):
        (path := Path(folder, "toy.gguf")).write_bytes(_toy(heads))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, False
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            return None
        contexts: list[Any] = []
        both: list[Decodes] = []
        try:
            contexts += (_context(model, depths[-1], n_threads, flash=on) for on in (True, False))
            both = [Decodes(context, _CHUNK) for context in contexts]
            return {depth: _times(both, depth) for depth in depths}
        except EngineError:  # such heads, or so little memory
            return None
        finally:
            for decodes in both:
                decodes.close()
            for context in contexts:
                llama_cpp.llama_free(context)
            llama_cpp.llama_model_free(model)
            release_workers()


def _context(model: Any, depth: int, n_threads: int, *, flash: bool) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = depth + 1, _CHUNK, _CHUNK
    params.n_threads = params.n_threads_batch = n_threads
    params.no_perf, params.flash_attn_type = True, flash_type(flash)
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise EngineError("no context for timing attention")
    return context


def _times(both: list[Decodes], depth: int) -> Times:
    """Read as far as `depth`, and time the last chunk and a row behind it, in turns: a slow moment does not hit only one."""

    def least(n: int, held: int, turns: int) -> tuple[float, float]:
        for decodes in both:
            decodes.read(held)
        on, off = zip(*([decodes.ms(n) for decodes in both] for _ in range(turns)))
        return min(on), min(off)

    chunk = min(_CHUNK, depth)
    return Times(least(chunk, depth - chunk, _CHUNK_TURNS), least(1, depth, _ROW_TURNS))


class Decodes:
    """Timed decodes of up to `most` rows, each with its logits, of the first sequence of a context, which holds `held` tokens."""

    def __init__(self, context: Any, most: int) -> None:
        self._context, self._most, self.held = context, most, 0
        vocab = llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context))
        n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = batch = llama_cpp.llama_batch_init(most, 0, 1)
        for i in range(most):  # different tokens, which go through different experts
            batch.token[i], batch.n_seq_id[i] = i % n_vocab, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1

    def read(self, depth: int) -> None:
        """Hold as many tokens. Raises EngineError."""
        while (n := min(self._most, depth - self.held)) > 0:
            self._decode(n)
            self.held += n

    def ms(self, n: int) -> float:
        """Milliseconds of a decode of n rows behind what is held; nothing of it stays. Raises EngineError."""
        start = perf_counter()
        try:
            self._decode(n)
            return 1e3 * (perf_counter() - start)
        finally:
            memory = llama_cpp.llama_get_memory(self._context)
            llama_cpp.llama_memory_seq_rm(memory, 0, self.held, -1)

    def _decode(self, n: int) -> None:
        self._batch.n_tokens = n
        for i in range(n):
            self._batch.pos[i] = self.held + i
        status = llama_cpp.llama_decode(self._context, self._batch)
        llama_cpp.llama_synchronize(self._context)
        if status:
            raise EngineError(f"timing a decode: llama_decode returned {status}")

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)


# -- a toy model -------------------------------------------------------------------------------------------------------

_WIDTH, _WORDS = 32, 32
_KINDS = {int: (4, "<I"), float: (6, "<f")}  # GGUF's numbers for kinds of values
_STRING = 8


def _toy(heads: Heads) -> bytes:
    """Return a GGUF of the architecture "llama", with one layer of random weights."""
    keys, values = heads.key_value * heads.key_width, heads.key_value * heads.value_width
    header: dict[str, str | int | float] = {
        "general.architecture": "llama", "tokenizer.ggml.model": "no_vocab", "llama.vocab_size": _WORDS,
        "llama.block_count": 1, "llama.context_length": 1 << 20, "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _WIDTH, "llama.attention.head_count": heads.query,
        "llama.attention.head_count_kv": heads.key_value, "llama.attention.key_length": heads.key_width,
        "llama.attention.value_length": heads.value_width, "llama.rope.dimension_count": heads.key_width,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    shapes = {  # inner dimension first
        "token_embd": (_WIDTH, _WORDS), "output_norm": (_WIDTH,), "blk.0.attn_norm": (_WIDTH,),
        "blk.0.attn_q": (_WIDTH, heads.query * heads.key_width), "blk.0.attn_k": (_WIDTH, keys),
        "blk.0.attn_v": (_WIDTH, values), "blk.0.attn_output": (heads.query * heads.value_width, _WIDTH),
        "blk.0.ffn_norm": (_WIDTH,), **{f"blk.0.ffn_{name}": (_WIDTH, _WIDTH) for name in ("gate", "up", "down")},
    }  # fmt: skip
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(header))
    for key, value in header.items():
        kind, form = _KINDS.get(type(value), (_STRING, ""))
        data = _text(value) if isinstance(value, str) else struct.pack(form, value)
        head += _text(key) + struct.pack("<I", kind) + data
    weights, random = b"", np.random.default_rng(0)
    for name, shape in shapes.items():
        form = f"<I{len(shape)}QIQ"  # type 0 is F32
        head += _text(f"{name}.weight") + struct.pack(form, len(shape), *shape, 0, len(weights))
        weights += _padded((0.1 * random.standard_normal(shape)).astype("<f4").tobytes())
    return _padded(head) + weights


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)
