"""Copies what a context holds of a sequence into this process's memory, and back."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

State = Any
"""A ctypes array of bytes."""


def state_of(context: Any, seq: int) -> State:
    """Copy what a context holds of a sequence."""
    buffer = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(context, seq))()
    size = llama_cpp.llama_state_seq_get_data(context, buffer, len(buffer), seq)
    return buffer if size == len(buffer) else (ctypes.c_uint8 * size).from_buffer(buffer)


def put_state(context: Any, seq: int, state: State) -> bool:
    """Put a state of such a context into a sequence, in place of what it holds; False if there is no room for it."""
    return bool(llama_cpp.llama_state_seq_set_data(context, state, len(state), seq))
