"""The HTTP server: its applications, the APIs that it speaks, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BODY = 1 << 24  # bytes of a request's body: agents send the whole conversation with each
STALL_S = 600.0  # limit of a round: a slow machine needs minutes for a prefill of 512 tokens


@dataclass(frozen=True)
class ServerSettings:
    """The model's name for clients, and the server's limits."""

    model: str
    # what clients must send; of several, one a line, users do not share remembered texts
    api_key: str | None = None
    queue: int = 256  # answers that may wait for a sequence; more are refused with 429
    max_body: int = MAX_BODY
    hosts: tuple[str, ...] | None = None  # accepted values of the Host header, None for any
    origins: tuple[str, ...] = ()  # of foreign pages that may use the server
    log: Callable[[dict[str, Any]], Any] | None = None  # takes what is recorded of each request
    # seconds of silence before a stream sends a ping: proxies give up after a minute
    ping: float = 15.0
    stall: float = STALL_S  # seconds after which a round of the model counts as hanging


def served_name(word: str) -> str:
    """Clients' name for a model that the command line names by its name or file."""
    path = Path(word)
    return path.stem if path.suffix == ".gguf" or path.is_file() else word


def lines_of(text: str) -> list[str]:
    """Keys in a text, without duplicates."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))
