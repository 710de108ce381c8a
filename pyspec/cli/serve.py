"""`pyspec serve`: OpenAI's interface over HTTP, and a page to chat in."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyspec.batch import Batch, Settings
from pyspec.batch.contexts import MOST_SEQUENCES
from pyspec.cli.command import Subcommand
from pyspec.cli.options import (
    DraftOptions,
    ModelOptions,
    SamplerOptions,
    draft_options,
    model_options,
    sampler_options,
)
from pyspec.errors import OptionError

if TYPE_CHECKING:
    from pyspec.serve.app import Serving

_BACKLOG = 512
_LOCAL = ("localhost", "127.0.0.1")


@click.command(cls=Subcommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 for any."
)
@click.option(
    "--api-key", envvar="PYSPEC_API_KEY", help="Clients have to send it; or PYSPEC_API_KEY."
)
@click.option(
    "--parallel",
    type=click.IntRange(1, MOST_SEQUENCES),
    help="Answers at once, each with its own context; by the profile and the memory if not given.",
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Answers that may wait; more are refused with 429.",
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    help="Bytes of a request.",
)
@click.option(
    "--origin", multiple=True, help="A page of others that may use the server; * for any."
)
@click.option("--alias", help="The model's name for clients; the file's if not given.")
@model_options
@draft_options
@sampler_options
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(1, 2**31 - 1),
    default=2048,
    show_default=True,
    help="Most tokens of answers that set no limit.",
)
def serve(
    host: str,
    port: int,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    **options: Any,
) -> None:
    """Serve chat and text completions as OpenAI does, and a page to chat in at /.

    Requests join and leave while others run; sampler options are those of requests that bring none.
    """
    import uvicorn  # noqa: PLC0415 - takes 0.2 s

    from pyspec.serve.app import make_app  # noqa: PLC0415 - as above

    listener = _listen(host, port)
    found = models.find()
    settings = Settings(sampler.sampling(), drafts.rule, options["max_tokens"])
    with Batch(
        str(found.path),
        length=drafts.length,
        draft_max=drafts.draft_max,
        settings=settings,
        parallel=options["parallel"],
        interactive=True,
        **found.arguments,
    ) as batch:
        serving = _serving(batch, options["alias"] or found.path.stem, host, options)
        _announce(serving, batch.parallel, host, listener.getsockname()[1])
        config = uvicorn.Config(
            make_app(batch, serving),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            limit_concurrency=2 * (batch.parallel + options["queue"]) + 256,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _serving(batch: Batch, name: str, host: str, options: Mapping[str, Any]) -> Serving:
    """What the server says of itself, and its limits."""
    from pyspec.serve.app import Serving  # noqa: PLC0415 - as above

    facts = batch.facts
    return Serving(
        model=name,
        api_key=options["api_key"],
        queue=options["queue"],
        max_body=options["max_body"],
        hosts=(*_LOCAL, host) if _is_loopback(host) and ":" not in host else None,
        origins=options["origin"],
        about={key: facts[key] for key in ("draft", "companion")},
    )


def _announce(serving: Serving, parallel: int, host: str, port: int) -> None:
    """Say where the server is reached, and by whom if by anyone."""
    shown = f"[{host}]" if ":" in host else host
    click.echo(
        f"{serving.model} on http://{shown}:{port}: draft {serving.about['draft']}, "
        f"{parallel} answers at once; Ctrl-C ends it",
        err=True,
    )
    if serving.api_key is None and not _is_loopback(host):
        click.echo("anyone who reaches this machine can use it: set --api-key", err=True)


def _listen(host: str, port: int) -> socket.socket:
    """Take the address before models are loaded. Raises OptionError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # who comes before the models are loaded waits
    except OSError as error:
        raise OptionError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", "give another --port"
        ) from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
