"""`pyspec serve`: OpenAI's and Anthropic's HTTP APIs, and a chat page."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspec.batch import Batch, Settings
from pyspec.batch.composing import GAP_MS
from pyspec.batch.contexts import MOST_SEQUENCES
from pyspec.batch.room import expected_bytes, room_of_models
from pyspec.batch.run import FEWEST
from pyspec.cli.command import command, model_names, option, tell
from pyspec.cli.engine_options import EngineOptions, hush_llama
from pyspec.cli.options import (
    CacheOptions,
    DraftOptions,
    ModelOptions,
    SystemOptions,
    files_among,
)
from pyspec.cli.sampler_options import SamplerOptions
from pyspec.engine.models import Placement
from pyspec.errors import NoMemory, OptionError
from pyspec.requests.records import MOST_TOKENS
from pyspec.screen.progress import store_progress
from pyspec.serve.keys import lines_of
from pyspec.serve.settings import MAX_BODY, STALL_S, ServerSettings, served_name
from pyspec.store.files import read_named
from pyspec.store.locate import found_here, resolve
from pyspec.store.others import name_of
from pyspec.store.sources import load_manifest

if TYPE_CHECKING:
    from pyspec.serve.embedding import Embedder

_BACKLOG = 2048
"""Backlog of connections waiting to be accepted."""

EXAMPLES = [
    ("pyspec serve", "The default model on http://127.0.0.1:8080, with a chat page"),
    ("pyspec serve -m llama3.1:8b --draft llama3.2:1b", "Models from ollama"),
    (
        "pyspec serve -m qwen3:4b -m llama3.2:3b --models-max 1",
        "Two models, one in memory at a time",
    ),
    (
        "OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none python app.py",
        "A program that uses the server",
    ),
]
_LOCAL = ("localhost", "127.0.0.1", "::1")
_KEY = "PYSPEC_API_KEY"
_MOST_KEYS = 1 << 20


def _keys_in(path: str) -> str:
    try:
        text = read_named(Path(path), _MOST_KEYS).decode()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"cannot read the keys in {path}: {reason}", "give another file"
        ) from None
    if not lines_of(text):
        raise OptionError(f"there are no keys in {path}", "write one per line")
    return text


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
        help="A model that makes embeddings (/v1/embeddings) or ranks texts (/v1/rerank), beside the one that answers; may be "
        "repeated.")
    parallel: int | None = option("Server", "--parallel", type=click.IntRange(1, MOST_SEQUENCES),
        help="Answers at once, each with its own context; if not given, chosen from profile and memory.")
    queue: int = option("Server", "--queue", type=click.IntRange(min=0), default=256,
        help="Requests that may wait; further ones get 429.")
    max_body: int = option("Server", "--max-body", type=click.IntRange(min=1), default=MAX_BODY,
        help="Largest request, bytes.")
    max_tokens: int | None = option("Server", "-n", "--max-tokens", type=click.IntRange(1, MOST_TOKENS),
        help="Longest answer, tokens, for requests that set no limit; if not given, as long as the context has room.")
    reasoning_budget: int = option("Server", "--reasoning-budget", metavar="N", type=click.IntRange(-1, MOST_TOKENS), default=-1,
        show_default=False, help="End the reasoning after N tokens, for requests that set no budget; if not given, or -1, the "
        "model ends it.")
    drain: float = option("Server", "--drain", metavar="SECONDS", type=click.FloatRange(min=0), default=30.0,
        help="On SIGTERM (CTRL_BREAK on Windows), how long running answers may take to finish; new requests get 503.")
    stall: float = option("Server", "--stall", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), default=STALL_S,
        help="How long one decode may take while answers run or wait; after that /health and /health/live report a hang.")
    token_gap: float = option("Server", "--token-gap", metavar="MS", type=click.FloatRange(min=1), default=GAP_MS,
        help="How long an answer may wait for its next token while prompts are read; longer gaps bring first tokens sooner.")
    cache_ram: int | None = option("Server", "--cache-ram", metavar="MIB", type=click.IntRange(min=0),
        help="Memory for conversations beyond --parallel, not read again; if not given, an eighth of the free one.")
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
        given = os.environ.get(_KEY) if self.api_key is None else self.api_key
        if given is not None and not given.strip():
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
        from pyspec.serve.access import in_words  # noqa: PLC0415 - brings the server's packages

        return lambda line: tell(in_words(line), err=True)


@dataclass(frozen=True)
class ServedModels(ModelOptions):
    """The models of a server, one per -m. Clients call a model given as a file by the file's name."""

    # fmt: off
    model: tuple[str, ...] = option("Models", "-m", "--model", metavar="NAME|FILE", multiple=True,  # type: ignore[assignment]
        shell_complete=model_names, help="Model that answers, as in all commands; if repeated, clients choose one by its name.")
    # fmt: on

    @property
    def first(self) -> str | None:
        """The model for requests that name none; None for the default target."""
        return served_name(self.model[0]) if self.model else None

    def of(self, name: str | None) -> ModelOptions:
        """Return the same options for one model, by the name that clients use."""
        named = {served_name(word): word for word in self.model}
        values = {each.name: getattr(self, each.name) for each in fields(ModelOptions)}
        return ModelOptions(**{**values, "model": named.get(name or "", name)})

    def names(self, *, catalogue: bool) -> list[str]:
        """Return the names that clients may ask for: these models, and with `catalogue` every local target."""
        here = [found.name for found, _, _ in found_here(load_manifest())] if catalogue else []
        return list(dict.fromkeys([*map(served_name, self.model), *here]))


@dataclass(frozen=True)
class Loader:
    """Loads the models of a server with the options it was started with."""

    server: ServerOptions
    told: SystemOptions
    cache: CacheOptions
    models: ServedModels
    drafts: DraftOptions
    sampler: SamplerOptions
    engine: EngineOptions

    @property
    def several(self) -> bool:
        """Whether clients may ask for more than one model. Raises OptionError for options that do not fit that."""
        server = self.server
        if max(server.models_max, len(self.models.model)) < 2:
            if server.models_memory is not None:
                raise OptionError(
                    "--models-memory is for several models",
                    "name several with -m, or set --models-max",
                )
            return False
        if server.alias is not None or self.cache.prompt_cache is not None:
            raise OptionError(
                "--alias and --prompt-cache work with one model only", "leave them out"
            )
        return True

    @property
    def memory(self) -> float:
        """Bytes that all models may take together."""
        asked, models = self.server.models_memory, self.models
        if asked is not None:
            return 1e9 * asked
        return room_of_models(models.n_gpu_layers, models.devices)

    def needs(self, name: str | None) -> int:
        """Estimate the bytes that a model takes. Raises NoMemory if that exceeds --models-memory."""
        path, given = self._find(name)
        others = files_among(given["draft"], given["companion"])
        kinds = Placement(type_k=self.engine.type_k, type_v=self.engine.type_v)
        cells = (self.server.parallel or FEWEST) * given["n_ctx"]
        return self._allowed(name, expected_bytes(path, others, cells, kinds))

    def _find(self, name: str | None) -> tuple[Path, dict[str, Any]]:
        return self.models.of(name).find(at_once=self.server.parallel or 1)

    def _allowed(self, name: str | None, nbytes: int) -> int:
        most = self.server.models_memory
        if most is not None and nbytes > 1e9 * most:
            raise NoMemory(
                f"{name or load_manifest().default_target} takes {nbytes / 1e9:.3g} GB and models may take {most:g}",
                "raise --models-memory, or lower -c or --parallel",
            )
        return nbytes

    def load(self, name: str | None) -> tuple[Batch, ServerSettings]:
        """Load a model and make it ready to answer. name: the name that clients use, None for the default target."""
        server, memory, several = self.server, self.cache.memory, self.several
        path, arguments = self._find(name)
        if several and isinstance(memory, Path):  # one model's tokens mean nothing to another
            memory = memory / path.stem
        rule, word = self.drafts.rule, self.models.of(name).model
        sampling = self.sampler.sampling(suggested=self.sampler.suggested(path, word or ""))
        most = server.max_tokens or MOST_TOKENS
        settings = Settings(
            sampling, rule, most, self.told.system, reasoning_budget=server.reasoning_budget
        )
        batch = Batch(
            str(path),
            length=self.drafts.length,
            draft_max=self.drafts.draft_max,
            settings=settings,
            parallel=server.parallel,
            interactive=True,
            token_gap=server.token_gap,
            cache_ram=server.cache_ram,
            prompt_cache=self.cache.prompt_cache,
            memory=memory,
            **{**arguments, **self.engine.arguments},
        )
        try:
            batch.prepare()
            self._allowed(name, batch.nbytes)
        except BaseException:
            batch.close()
            raise
        own = name or load_manifest().default_target
        return batch, server.serving(own if several else _called(own, path))

    def embedders(self) -> list[Embedder]:
        """Load the models of --embed."""
        from pyspec.serve.embedding import Embedder  # noqa: PLC0415 - takes a moment, and few need it

        models, engine, found = self.models, self.engine, []
        for word in self.server.embed:
            with store_progress() as progress:
                path = resolve(word, progress, models.n_gpu_layers, models.devices)
            how = {
                "n_gpu_layers": models.n_gpu_layers, "devices": models.devices, "n_threads": models.threads,
                "trust": models.trust_model, "extra_buffers": models.extra_buffers, "n_batch": engine.n_batch,
            }  # fmt: skip
            found.append(Embedder(served_name(word), path, self.server.queue, **how))
        return found


def _called(word: str, path: Path) -> str:
    """Return the name of the only model: its file's known name, or for ollama's files the name asked for."""
    return name_of(path) if path.suffix == ".gguf" or Path(word).exists() else word


FIRST = (
    "host port api_key origin alias parallel max_tokens system model draft "
    "ctx threads n_gpu_layers verify temperature top_p"
)
"""Options that `--help` lists."""


@command(examples=EXAMPLES, first=FIRST)
def serve(
    server: ServerOptions,
    told: SystemOptions,
    cache: CacheOptions,
    models: ServedModels,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
) -> None:
    """Serve OpenAI's and Anthropic's HTTP APIs, with a chat page at /.

    Requests join and leave while others run; sampling options are defaults for requests that set none.
    """
    import uvicorn  # noqa: PLC0415 - takes 0.2 s

    from pyspec.serve.app import make_app  # noqa: PLC0415 - as above
    from pyspec.serve.drain import AT_ONCE, DrainingServer, leave_hung  # noqa: PLC0415
    from pyspec.serve.fleet import OtherModels  # noqa: PLC0415
    from pyspec.serve.guard import GuardedProtocol  # noqa: PLC0415

    hush_llama(engine.verbose)
    listener = _listen(server.host, server.port)
    loader = Loader(server, told, cache, models, drafts, sampler, engine)
    batch, serving = loader.load(models.first)
    with batch:
        catalogue = server.models_max > max(1, len(models.model))
        names = partial(models.names, catalogue=catalogue)
        most = server.models_max or len(models.model)
        others = OtherModels(names, loader.load, most, loader.needs, loader.memory)
        _announce(server, serving.model, batch.facts, listener.getsockname()[1])
        if batch.placed:
            tell(batch.placed, err=True)
        embedders = loader.embedders()
        app = make_app(batch, serving, others if loader.several else None, embedders)
        config = uvicorn.Config(
            app,
            http=GuardedProtocol,
            log_config=None,  # log where the rest of pyspec logs
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            backlog=AT_ONCE,
            limit_concurrency=2 * (batch.parallel + server.queue) + 256,
        )
        draining = DrainingServer(config, app.state.fleet, server.drain, _BACKLOG)
        draining.run(sockets=[listener])
        leave_hung(app.state.fleet)
        for each in embedders:
            each.close()
    draining.repeat_signal()


def _announce(server: ServerOptions, model: str, facts: dict[str, Any], port: int) -> None:
    shown = f"[{server.host}]" if ":" in server.host else server.host
    tell(
        f"{model} on http://{shown}:{port}: draft {facts['draft']}, "
        f"{facts['parallel']} answers at once; Ctrl-C stops it",
        err=True,
    )
    if server.keys is None and not server.is_local:
        tell("anyone who can reach this machine can use the server; set --api-key", err=True)


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address before models are loaded. Raises OptionError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # clients that connect before the models are loaded wait
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python's text repeats the address
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        hint = "--host takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
        if error.errno in _OF_PORTS:
            hint = "give another --port"
        raise OptionError(f"cannot listen on {host} port {port}: {reason}", hint) from None


_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)
