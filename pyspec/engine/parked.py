"""Keeps evicted conversations in this machine's memory, so that one that comes back need not be prefilled again."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import llama_cpp
import psutil

from pyspec.engine.handle import Engine, Role
from pyspec.text.parts import common_prefix

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


MIN_TOKENS = 16
"""Shortest common beginning worth taking over from another sequence, tokens."""

MIB = 1 << 20
_SHARE = 0.125  # default share of the free memory


def room_for_parked(mib: int | None) -> int:
    """Return the bytes that conversations may take. mib: their limit in MiB, None for a share of the free memory."""
    return int(_SHARE * psutil.virtual_memory().available) if mib is None else mib * MIB


class ParkedText(NamedTuple):
    """A text of an owner, and what each context held of it."""

    owner: str
    tokens: list[int]
    states: Mapping[Role, State]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.states.values()))


class ParkedTexts:
    """KV states of evicted texts by owner, for prompts of the same owner alone. The oldest go first.

    contexts: addresses of the contexts whose KV can be copied, by role. most: bytes of all texts.
    """

    def __init__(self, engine: Engine, contexts: Mapping[Role, Any], most: int) -> None:
        self._engine, self._contexts, self._most = engine, contexts, most
        self._texts: list[ParkedText] = []

    def park(self, seq: int, text: Sequence[int], owner: str) -> None:
        """Keep what a sequence holds of an owner's text, unless a kept text already begins with it."""
        tokens = list(text[: self._engine.held(Role.TARGET, seq)])
        if not tokens or self._most <= 0:
            return
        mine = [each for each in self._texts if each.owner == owner]
        if any(common_prefix(each.tokens, tokens) == len(tokens) for each in mine):
            return
        states = {role: state_of(context, seq) for role, context in self._contexts.items()}
        grown = [e for e in mine if common_prefix(e.tokens, tokens) == len(e.tokens)]
        self._texts = [each for each in self._texts if all(each is not e for e in grown)]
        self._texts.append(ParkedText(owner, tokens, states))
        while sum(each.nbytes for each in self._texts) > self._most:
            self._texts.pop(0)

    def fetch(self, prompt: Sequence[int], owner: str, least: int) -> ParkedText | None:
        """Return the owner's text with the longest common prefix with a prompt; None below `least` tokens."""
        texts = enumerate(self._texts)
        found = [(_common(each, prompt), i) for i, each in texts if each.owner == owner]
        most, i = max(found, default=(0, 0))
        return self._texts[i] if found and most >= least else None

    def restore(self, parked: ParkedText, seq: int, prompt: Sequence[int]) -> int:
        """Move a text back into a free sequence; returns how many of a prompt's tokens it holds then.

        Without room it returns 0 and the text stays.
        """
        n = _common(parked, prompt)
        if not put_state(self._contexts[Role.TARGET], seq, parked.states[Role.TARGET]):
            return 0
        self._texts = [each for each in self._texts if each is not parked]
        self._engine.set_tokens(seq, prompt, held=n)
        for role, state in parked.states.items():
            if role != Role.TARGET and put_state(self._contexts[role], seq, state):
                self._engine.put_back(role, seq, n)
        return n


def _common(parked: ParkedText, prompt: Sequence[int]) -> int:
    return min(common_prefix(parked.tokens, prompt), len(prompt) - 1)
