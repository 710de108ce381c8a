"""A llama.cpp context with many sequences: rows in, logits and hidden states out.

Everything goes through the low-level calls of `llama_cpp`, because `Llama` has one sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp as lc
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from numpy.typing import NDArray

from pyspec._lib import find_function
from pyspec.errors import TrainingError
from pyspec.gguf.check import Loading, check_model

Row = tuple[int, int, int]
"""A token, its position and its sequence."""


@lc.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(level: int, text: bytes, user: ctypes.c_void_p) -> None:
    """llama.cpp's log would tear the progress bar."""


def _states_call(name: str, result: Any, *more: Any) -> Any:
    """A call of (context, layer, `more`) that shows the states inside the model."""
    call = find_function(lc.llama_cpp._lib, name)  # noqa: SLF001 - there is no other way to it
    call.restype, call.argtypes = result, [ctypes.c_void_p, ctypes.c_uint32, *more]
    return call


class Target:
    """One model with `slots` sequences of `depth` positions each; embeddings on, pooling none.

    `layers` are those whose inputs `features` gives after each decode. Raises `TrainingError` or `ModelError`.
    """

    def __init__(
        self, path: Path, slots: int, depth: int, threads: int, batch: int = 1024, gpu: bool = False,
        layers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        lc.llama_log_set(_silent, ctypes.c_void_p(0))
        lc.llama_backend_init()
        params = lc.llama_model_default_params()
        params.n_gpu_layers = -1 if gpu else 0
        params.use_extra_bufts = check_model(path, loading=Loading(params.n_gpu_layers))
        self.model = lc.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise TrainingError(f"llama.cpp cannot load {path}", "give a complete GGUF file")
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.n_vocab = int(lc.llama_vocab_n_tokens(self.vocab))
        self.n_embd = int(lc.llama_model_n_embd(self.model))
        self.slots, self.depth, self.n_batch = slots, depth, batch
        self.context = lc.llama_init_from_model(self.model, self._options(threads))
        if not self.context:
            raise TrainingError("llama.cpp cannot make the context", "ask for fewer slots")
        self.memory = lc.llama_get_memory(self.context)
        self.layers = self._watch(layers)
        self._batch = lc.llama_batch_init(batch, 0, 1)
        self._chat = self._formatter()

    def _options(self, threads: int) -> Any:
        """Separate streams for the sequences: attention then never looks at other sequences."""
        options = lc.llama_context_default_params()
        options.n_ctx = self.slots * self.depth
        options.n_batch, options.n_ubatch = self.n_batch, min(512, self.n_batch)
        options.n_seq_max, options.n_outputs_max = self.slots, self.n_batch
        options.n_threads = options.n_threads_batch = threads
        options.embeddings, options.pooling_type = True, lc.LLAMA_POOLING_TYPE_NONE
        options.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_ENABLED
        options.kv_unified = False
        return options

    def _watch(self, layers: Sequence[int]) -> tuple[int, ...]:
        count = int(lc.llama_model_n_layer(self.model))
        wrong = [layer for layer in layers if not 0 <= layer < count]
        if wrong:
            raise TrainingError(
                f"the target has no layer {wrong[0]}", f"name some of 0 to {count - 1}"
            )
        for layer in layers:
            show = _states_call("llama_set_embeddings_layer_inp", None, ctypes.c_bool)
            show(self.context, layer, True)
        return tuple(layers)

    def _formatter(self) -> Jinja2ChatFormatter:
        raw = lc.llama_model_chat_template(self.model, None)
        if not raw:
            raise TrainingError("the target has no chat template", "give an instruct model")
        bos = lc.llama_vocab_get_text(self.vocab, lc.llama_vocab_bos(self.vocab)).decode()
        eos = lc.llama_vocab_get_text(self.vocab, lc.llama_vocab_eos(self.vocab)).decode()
        return Jinja2ChatFormatter(template=raw.decode(), eos_token=eos, bos_token=bos)

    def chat_tokens(self, question: str) -> list[int]:
        """Tokens of a chat with this one question, up to where the answer begins."""
        text = self._chat(messages=[{"role": "user", "content": question}]).prompt
        return self.tokens(text)

    def tokens(self, text: str) -> list[int]:
        """Tokens of a rendered text, control tokens recognised."""
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = lc.llama_tokenize(self.vocab, data, len(data), room, len(room), False, True)
        if count < 0:
            raise TrainingError("llama.cpp cannot tokenize a prompt", "check the prompts file")
        return list(room[:count])

    def ends(self, token: int) -> bool:
        """True for a token that ends the answer."""
        return bool(lc.llama_vocab_is_eog(self.vocab, token))

    def decode(self, rows: Sequence[Row]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Decode rows; returns (logits [rows, n_vocab], states [rows, n_embd]).

        Both are views into the context, valid until the next call. With embeddings on, llama.cpp
        outputs every row, whatever the batch's flags say.
        """
        batch = self._batch
        batch.n_tokens = len(rows)
        for number, (token, position, sequence) in enumerate(rows):
            batch.token[number], batch.pos[number] = token, position
            batch.n_seq_id[number], batch.seq_id[number][0] = 1, sequence
            batch.logits[number] = True
        status = lc.llama_decode(self.context, batch)
        if status:
            raise TrainingError(f"llama_decode returned {status}", "ask for fewer slots")
        logits, states = lc.llama_get_logits(self.context), lc.llama_get_embeddings(self.context)
        return (
            np.ctypeslib.as_array(logits, shape=(len(rows), self.n_vocab)),
            np.ctypeslib.as_array(states, shape=(len(rows), self.n_embd)),
        )

    def features(self, rows: int) -> NDArray[np.float32]:
        """The inputs of the watched layers at the last decode's rows: [rows, layers, n_embd]."""
        found = np.empty((rows, len(self.layers), self.n_embd), np.float32)
        for number, layer in enumerate(self.layers):
            read = _states_call("llama_get_embeddings_layer_inp", ctypes.POINTER(ctypes.c_float))
            values = read(self.context, layer)
            found[:, number] = np.ctypeslib.as_array(values, shape=(rows, self.n_embd))
        return found

    def clear(self, sequence: int) -> None:
        """Forget what `sequence` holds."""
        lc.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def start_from(self, sequence: int, prefix: int) -> None:
        """Empty `sequence` and give it a copy of what sequence `prefix` holds."""
        self.clear(sequence)
        lc.llama_memory_seq_cp(self.memory, prefix, sequence, -1, -1)

    def close(self) -> None:
        """Free the batch, the context and the model."""
        lc.llama_batch_free(self._batch)
        lc.llama_free(self.context)
        lc.llama_model_free(self.model)


def best(
    logits: NDArray[np.float32], top: int
) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
    """The `top` best ids (best first), their log-probabilities and the log-sum-exp of each row.

    Exact: the best `top` entries lie in the `top` columns (of a [stride, columns] view) with the
    largest maxima, so only those are sorted. Ten times faster than a full partition at 49,152.
    """
    count, width = logits.shape
    stride = next((s for s in (64, 32, 16, 8, 4, 2) if not width % s and width // s > top), 1)
    view = logits.reshape(count, stride, width // stride)
    high = view.max(axis=1)
    columns = np.argpartition(high, -top, axis=1)[:, -top:]
    found = np.take_along_axis(view, columns[:, None, :], axis=2).reshape(count, -1)
    order = np.argpartition(found, -top, axis=1)[:, -top:]
    values = np.take_along_axis(found, order, axis=1)
    # position in `found` is (row of the view) * top + (number of the column)
    ids = order // top * (width // stride) + np.take_along_axis(columns, order % top, axis=1)
    rank = np.argsort(-values, axis=1, kind="stable")
    values, ids = np.take_along_axis(values, rank, axis=1), np.take_along_axis(ids, rank, axis=1)
    peak = values[:, :1]
    lse = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
    return ids, values - lse[:, None], lse
