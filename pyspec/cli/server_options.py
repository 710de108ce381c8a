"""Where a server listens, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from pyspec.batch.contexts import MAX_SEQUENCES
from pyspec.cli.command import model_names, option, tell
from pyspec.errors import OptionError
from pyspec.sampling.limits import MAX_TOKENS
from pyspec.serve.keys import lines_of
from pyspec.serve.settings import MAX_BODY, STALL_S, ServerSettings
from pyspec.store.files import read_named

_LOCAL = ("localhost", "127.0.0.1", "::1")
_KEY = "PYSPEC_API_KEY"
_MAX_KEYS = 1 << 20


def _keys_in(path: str) -> str:
    try:
        text = read_named(Path(path), _MAX_KEYS).decode()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"cannot read the keys in {path}: {reason}", "give another file"
        ) from None
    if not lines_of(text):
        raise OptionError(f"there are no keys in {path}", "write one per line")
    return text


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise OptionError(f"--idle is {text[:40]}", "use a number of seconds, or 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, who may use it, and its limits."""

    # fmt: off
    host: str = option("Server", "--host", default="127.0.0.1", help="Address to listen on.")
    port: int = option("Server", "--port", type=click.IntRange(0, 65535), default=8080,
        help="Port to listen on; 0 for a free one.")
    api_key: str | None = option("Server", "--api-key", envvar=_KEY,
        help="Key that clients must send; PYSPEC_API_KEY sets it too.")
    api_key_file: str | None = option("Server", "--api-key-file", metavar="FILE", type=_keys_in,
        help="File of keys, one per line. Texts sent with one key never draft for another.")
    allow_host: tuple[str, ...] = option("Server", "--allow-host", metavar="NAME", multiple=True,
        help="Another host name that requests may use, such as behind a proxy; may be repeated.")
    origin: tuple[str, ...] = option("Server", "--origin", multiple=True,
        help="Another web origin whose pages may use the server; * for any.")
    alias: str | None = option("Server", "--alias", help="The model's name for clients; if not given, the file's name.")
    embed: tuple[str, ...] = option("Server", "--embed", metavar="NAME|FILE", multiple=True, shell_complete=model_names,
        help="A model that makes embeddings (/v1/embeddings), beside the one that answers; may be repeated.")
    parallel: int | None = option("Server", "--parallel", type=click.IntRange(1, MAX_SEQUENCES),
        help="Answers at once, each with its own context; if not given, chosen from profile and memory.")
    queue: int = option("Server", "--queue", type=click.IntRange(min=0), default=256,
        help="Requests that may wait; further ones get 429.")
    max_body: int = option("Server", "--max-body", type=click.IntRange(min=1), default=MAX_BODY,
        help="Largest request, bytes.")
    max_tokens: int | None = option("Server", "-n", "--max-tokens", type=click.IntRange(1, MAX_TOKENS),
        help="Longest answer, tokens, for requests that set no limit; if not given, as long as the context has room.")
    reasoning_budget: int = option("Server", "--reasoning-budget", metavar="N", type=click.IntRange(-1, MAX_TOKENS), default=-1,
        show_default=False, help="End the reasoning after N tokens, for requests that set no budget; if not given, or -1, the "
        "model ends it.")
    drain: float = option("Server", "--drain", metavar="SECONDS", type=click.FloatRange(min=0), default=30.0,
        help="On SIGTERM, how long running answers may take to finish; new requests get 503.")
    idle: float | None = option("Server", "--idle", metavar="30m", type=_duration,
        help="End after so long without a request: seconds, or a number with s, m or h.")
    stall: float = option("Server", "--stall", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), default=STALL_S,
        help="How long one decode may take while answers run or wait; after that /health and /health/live report a hang.")
    token_gap: float | None = option("Server", "--token-gap", metavar="MS", type=click.FloatRange(min=1),
        help="How long an answer may wait for its next token while prompts are read; longer gaps bring first tokens sooner. If "
        "not given, 250, or four times as long as the answers alone take.")
    log_json: bool = option("Server", "--log-json", is_flag=True,
        help="Log each request to stdout as a line of JSON, without its text.")
    quiet: bool = option("Server", "-q", "--quiet", is_flag=True,
        help="Print no line for each request, as a terminal otherwise gets. Texts are never printed.")
    models_max: int = option("Server", "--models-max", metavar="N", type=click.IntRange(min=0), default=0,
        help="Most models in memory at once; the least recently used is unloaded. 0: as many as -m names. If higher than that, "
        "clients may ask for any model that `pyspec models` lists as here.")
    models_memory: float | None = option("Server", "--models-memory", metavar="GB", type=click.FloatRange(0.0, min_open=True),
        help="Most memory for all models, weights and KV caches; the least recently used are unloaded. If not given, three "
        "quarters of this machine's memory, or of its devices' if layers are put there.")
    # fmt: on

    def __post_init__(self) -> None:
        # click treats an empty variable as unset
        key = os.environ.get(_KEY) if self.api_key is None else self.api_key
        if key is not None and not key.strip():
            raise OptionError(
                "the API key is empty", f"give one, or leave --api-key and {_KEY} out"
            )

    @property
    def keys(self) -> str | None:
        """All keys, one per line; None if there are none."""
        return "\n".join(filter(None, (self.api_key, self.api_key_file))) or None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def serving(self, file: str) -> ServerSettings:
        """Return the server's settings. file: the model's name if no --alias is given."""
        return ServerSettings(
            model=self.alias or file,
            api_key=self.keys,
            queue=self.queue,
            max_body=self.max_body,
            hosts=(*_LOCAL, self.host, *self.allow_host) if self.is_local else None,
            origins=self.origin,
            stall=self.stall,
            log=self._log,
        )

    @property
    def _log(self) -> Callable[[str], object] | None:
        """What is called with a line of JSON for each request."""
        if self.log_json:
            return partial(print, flush=True)
        if self.quiet or not sys.stderr.isatty():
            return None
        from pyspec.serve.access import as_text  # noqa: PLC0415 - brings the server's packages

        return lambda line: tell(as_text(line), err=True)
