"""Text from tokens as they come: whole characters only, and stop strings held back."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import llama_cpp

from pyspec.errors import OptionError

_PIECE_BYTES = 256


class TextAssembler:
    """Turns token bytes into text, without ever showing half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text; they are not part of it.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Iterable[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        if not all(self._stop):
            raise OptionError("a stop string is empty", "leave it out")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.done = False
        """Whether a stop string was met; further tokens are ignored."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens make safe to show."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"".join(map(self._piece, ids)))
        return self._release(final=False)

    def finish(self) -> str:
        """The text still held back at the end."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.done = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = 0 if final else self._possible_stop()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        return max((_overlap(self._held, stop) for stop in self._stop), default=0)


def _overlap(text: str, stop: str) -> int:
    return next(
        (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0
    )


def piece_reader(vocab: Any) -> Callable[[int], bytes]:
    """A function from token id to its bytes; control tokens have none. Answers are remembered."""
    known: dict[int, bytes] = {}
    buffer = ctypes.create_string_buffer(_PIECE_BYTES)

    def read(token: int) -> bytes:
        if token not in known:
            n = llama_cpp.llama_token_to_piece(vocab, token, buffer, _PIECE_BYTES, 0, False)
            known[token] = buffer.raw[:n] if n >= 0 else _long_piece(vocab, token, -n)
        return known[token]

    return read


def _long_piece(vocab: Any, token: int, n: int) -> bytes:
    buffer = ctypes.create_string_buffer(n)
    llama_cpp.llama_token_to_piece(vocab, token, buffer, n, 0, False)
    return bytes(buffer.raw)
