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
from pyspec.machine.files import read_named
from pyspec.sampling.limits import MAX_TOKENS
from pyspec.serve.keys import lines_of
from pyspec.serve.settings import MAX_BODY, STALL_S, ServerSettings

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
    host: str = option("Server", "--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on.")
    port: int = option("Server", "--port", type=click.IntRange(0, 65535), default=8080,
        help="Port to listen on; 0: a free one.")
    api_key: str | None = option("Server", "--api-key", envvar=_KEY, metavar="KEY",
        help="Key that clients must send, or PYSPEC_API_KEY.")
    api_key_file: str | None = option("Server", "--api-key-file", metavar="FILE", type=_keys_in,
        help="Keys, one a line; their texts stay apart.")
    allow_host: tuple[str, ...] = option("Server", "--allow-host", metavar="NAME", multiple=True,
        help="Another host name of it, as behind a proxy.")
    origin: tuple[str, ...] = option("Server", "--origin", metavar="URL", multiple=True,
        help="Another web origin that may use it; *: any.")
    alias: str | None = option("Server", "--alias", metavar="NAME", help="The model's name for clients.")
    embed: tuple[str, ...] = option("Server", "--embed", metavar="NAME|FILE", multiple=True, shell_complete=model_names,
        help="A model for embeddings, beside the others.")
    parallel: int | None = option("Server", "--parallel", type=click.IntRange(1, MAX_SEQUENCES),
        help="Answers at once; if not given, what is best here.")
    queue: int = option("Server", "--queue", type=click.IntRange(min=0), default=256,
        help="Requests that may wait; others get 429.")
    max_body: int = option("Server", "--max-body", type=click.IntRange(min=1), default=MAX_BODY,
        help="Largest request, bytes.")
    max_tokens: int | None = option("Server", "-n", "--max-tokens", type=click.IntRange(1, MAX_TOKENS),
        help="Longest answer, where a request sets none.")
    reasoning_budget: int = option("Server", "--reasoning-budget", metavar="N", type=click.IntRange(-1, MAX_TOKENS), default=-1,
        show_default=False, help="End the reasoning after N tokens.")
    drain: float = option("Server", "--drain", metavar="SECONDS", type=click.FloatRange(min=0), default=30.0,
        help="How long answers may go on after SIGTERM.")
    idle: float | None = option("Server", "--idle", metavar="30m", type=_duration,
        help="End after so long without a request.")
    stall: float = option("Server", "--stall", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), default=STALL_S,
        help="/health reports a decode that takes longer.")
    token_gap: float | None = option("Server", "--token-gap", metavar="MS", type=click.FloatRange(min=1),
        help="Longest wait of an answer while prompts are read.")
    log_json: bool = option("Server", "--log-json", is_flag=True,
        help="A line of JSON for each request, on stdout.")
    quiet: bool = option("Server", "-q", "--quiet", is_flag=True,
        help="No line for each request.")
    models_max: int = option("Server", "--models-max", metavar="N", type=click.IntRange(min=0), default=0,
        help="Most models in memory; with more than -m names, clients may ask for any that is here.")
    models_memory: float | None = option("Server", "--models-memory", metavar="GB", type=click.FloatRange(0.0, min_open=True),
        help="Most memory for all models; if not given, three quarters.")
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
