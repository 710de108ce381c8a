"""What the target has read of a prompt, kept on disk: a long prompt is read once."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from pathlib import Path
from typing import Any

import llama_cpp
import msgspec

from pyspec.atomic import write_whole
from pyspec.errors import OptionError, PyspecError
from pyspec.llama import SpeculativeLlama
from pyspec.store import file_sha256

log = logging.getLogger("pyspec")

_MAGIC = b"pyspec-prompt-cache-1\n"


class _Head(msgspec.Struct):
    """What a cached state belongs to: the target's hash, how it is held, the tokens it is of, and its own hash."""

    model: str
    layout: str
    tokens: list[int]
    sha256: str


class PromptCache:
    """One file for the state of one prompt's tokens; None for no file.

    A file of another model, of other settings, or damaged is never put into a context: its hash is checked first.
    """

    def __init__(self, llm: SpeculativeLlama, path: Path | None) -> None:
        self._llm = llm
        self._path = path
        self._restored = 0

    def restore(self, tokens: list[int]) -> int:
        """Put into the context what the file holds of a prompt's beginning; returns how many tokens that saves."""
        if self._path is None or not self._path.exists():
            return 0
        found = self._read(self._path)
        if found is None:
            return 0
        head, state = found
        same = _common(head.tokens, tokens)
        if not same:
            log.warning("%s is of another prompt, which is replaced", self._path.name)
            return 0
        context = self._llm._ctx.ctx
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if llama_cpp.llama_state_seq_set_data(context, buffer, len(state), 0) == 0:
            log.warning("llama.cpp does not take %s; the prompt is read anew", self._path.name)
            return 0
        n = len(head.tokens)
        self._llm.input_ids[:n] = head.tokens
        self._llm.n_tokens = n
        self._restored = min(same, n)
        return self._restored

    def keep(self, tokens: list[int]) -> None:
        """Write the state of a prompt that was just read; failing is said and ends nothing."""
        if self._path is None or len(tokens) <= self._restored + 1:
            return
        try:
            self._write(self._path)
        except (OSError, PyspecError) as error:
            log.warning("the prompt cache is not written: %s", error)

    def _write(self, path: Path) -> None:
        context = self._llm._ctx.ctx
        size = llama_cpp.llama_state_seq_get_size(context, 0)
        buffer = (ctypes.c_uint8 * size)()
        size = llama_cpp.llama_state_seq_get_data(context, buffer, size, 0)
        state = bytes(buffer[:size])
        held = [int(token) for token in self._llm.input_ids[: self._llm.n_tokens]]
        digest = hashlib.sha256(state).hexdigest()
        head = msgspec.json.encode(_Head(self._model(), self._layout(), held, digest))
        write_whole(path, [_MAGIC, head, b"\n", state])

    def _read(self, path: Path) -> tuple[_Head, bytes] | None:
        try:
            data = path.read_bytes()
            magic, rest = data[: len(_MAGIC)], data[len(_MAGIC) :]
            line, _, state = rest.partition(b"\n")
            head = msgspec.json.decode(line, type=_Head) if magic == _MAGIC else None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be used as a prompt cache: %s", path.name, error)
            return None
        if head is None:
            raise OptionError(f"{path} is there and is no prompt cache", "name another file")
        if head.model != self._model() or head.layout != self._layout():
            log.warning("%s is of another model or other settings, and is replaced", path.name)
            return None
        if hashlib.sha256(state).hexdigest() != head.sha256 or not self._fits(head.tokens):
            log.warning("%s is damaged; the prompt is read anew", path.name)
            return None
        return head, state

    def _fits(self, tokens: list[int]) -> bool:
        known = range(self._llm.n_vocab())
        return len(tokens) < self._llm.n_ctx() and all(token in known for token in tokens)

    def _model(self) -> str:
        return file_sha256(self._llm.model_path)

    def _layout(self) -> str:
        own: Any = self._llm.context_params
        return f"{own.type_k} {own.type_v} {own.flash_attn_type} {llama_cpp.__version__}"


def _common(one: list[int], other: list[int]) -> int:
    n = 0
    for a, b in zip(one, other):
        if a != b:
            break
        n += 1
    return n
