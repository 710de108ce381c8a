"""How a server behaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BODY = 1 << 24
"""Bytes of a request: an agent sends its whole conversation each time."""

STALL_S = 600.0
"""No round that works takes so long: 512 tokens of a prompt, at less than one a second."""


@dataclass(frozen=True)
class ServerSettings:
    """What a server calls itself, and its limits.

    api_key: what clients have to send; of several, one a line, each has owners of texts of its own.
    queue: answers that may wait beyond those that run; more are refused with 429. max_body: bytes of a request.
    hosts: names by which the server may be called, None for any. origins: pages of others that may use it. log: takes a line
    of JSON for each request. ping: seconds after which a stream that has nothing to say shows that it goes on. stall: seconds in
    which a round of the model ends that does not hang: prompts are read in pieces of 512 tokens, and a slow machine needs minutes
    for one.
    """

    model: str
    api_key: str | None = None
    queue: int = 256
    max_body: int = MAX_BODY
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    log: Callable[[str], Any] | None = None
    ping: float = 15.0  # proxies give up after a minute
    stall: float = STALL_S


def served_name(word: str) -> str:
    """What clients call a model that was given as a name or a file."""
    return Path(word).stem if word.endswith(".gguf") else word
