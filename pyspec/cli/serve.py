"""`pyspec serve`: OpenAI's and Anthropic's HTTP APIs, and a chat page; where it listens, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspec.batch import Batch, Settings
from pyspec.batch.run import MIN_INTERACTIVE
from pyspec.cli.command import command, model_names, option, tell
from pyspec.cli.opening import files_among, find, hush_llama
from pyspec.cli.options import (
    DraftOptions,
    EngineOptions,
    KeptOptions,
    ModelOptions,
    SamplerOptions,
    SystemOptions,
)
from pyspec.engine.contexts import MAX_SEQUENCES, expected_bytes, room_of_models
from pyspec.engine.models import SideOptions
from pyspec.errors import NoMemory, OptionError
from pyspec.hub.locate import found_here, resolve
from pyspec.hub.sources import load_manifest
from pyspec.machine.files import read_text
from pyspec.sampling.options import MAX_TOKENS
from pyspec.screen import store_progress
from pyspec.serve import MAX_BODY, STALL_S, ServerSettings, lines_of, served_name

if TYPE_CHECKING:
    from pyspec.serve.fleet import Embedder

_LOCAL = ("localhost", "127.0.0.1", "::1")
_KEY = "PYSPEC_API_KEY"


def _keys_in(path: str) -> str:
    text = read_text(Path(path))
    if not lines_of(text):
        raise OptionError(f"there are no keys in {path}", "write one per line")
    return text


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
            hint = f"give one, or leave --api-key and {_KEY} out"
            raise OptionError("the API key is empty", hint)

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
        hosts = (*_LOCAL, self.host, *self.allow_host) if self.is_local else None
        return ServerSettings(
            self.alias or file, self.keys, self.queue, self.max_body, hosts, self.origin, self._log, stall=self.stall,
        )  # fmt: skip

    @property
    def _log(self) -> Callable[[dict[str, Any]], object] | None:
        """What writes a line for each request."""
        if self.log_json:
            return lambda entry: tell(json.dumps(entry))
        if self.quiet or not sys.stderr.isatty():
            return None
        from pyspec.serve.access import as_text  # noqa: PLC0415 - brings the server's packages

        return lambda entry: tell(as_text(entry), err=True)


_BACKLOG = 2048  # backlog of connections waiting to be accepted

EXAMPLES = [
    ("pyspec serve", "The default model on http://127.0.0.1:8080, with a chat page"),
    ("pyspec serve -m llama3.1:8b --draft llama3.2:1b", "Models from ollama"),
    ("pyspec serve -m qwen3:4b -m llama3.2:3b --models-max 1", "Two models, one in memory at a time"),
    ("OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none python app.py", "A program that uses the server"),
]  # fmt: skip


@dataclass(frozen=True)
class ServedModels(ModelOptions):
    """The models of a server, one per -m. Clients call a model given as a file by the file's name."""

    # fmt: off
    model: tuple[str, ...] = option("Models", "-m", "--model", metavar="NAME|FILE", multiple=True,  # type: ignore[assignment]
        shell_complete=model_names, help="Model that answers; repeat it for clients to choose by name.")
    # fmt: on

    @property
    def first(self) -> str | None:
        """The model for requests that name none; None for the default target."""
        return served_name(self.model[0]) if self.model else None

    def of(self, name: str | None) -> ModelOptions:
        """Return the same options for one model, by the name that clients use."""
        named = {served_name(word): word for word in self.model}
        return ModelOptions(**{**vars(self), "model": named.get(name or "", name)})

    def names(self, *, catalogue: bool) -> list[str]:
        """Return the names that clients may ask for: these models, and with `catalogue` every local target."""
        here = [found.name for found in found_here(load_manifest())] if catalogue else []
        return list(dict.fromkeys([*map(served_name, self.model), *here]))


@dataclass(frozen=True)
class Loader:
    """Loads the models of a server with the options it was started with."""

    server: ServerOptions
    system: SystemOptions
    cache: KeptOptions
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
                hint = "name several with -m, or set --models-max"
                raise OptionError("--models-memory is for several models", hint)
            return False
        if server.alias is not None or self.cache.prompt_cache is not None:
            hint = "leave them out"
            raise OptionError("--alias and --prompt-cache work with one model only", hint)
        words = set(self.models.model)
        if len(set(map(served_name, words))) < len(words):
            raise OptionError(
                "clients could not tell two models of one file name apart", "rename a file"
            )
        return True

    @property
    def memory(self) -> float:
        """Bytes that all models may take together."""
        limit, models = self.server.models_memory, self.models
        if limit is not None:
            return 1e9 * limit
        return room_of_models(models.n_gpu_layers, models.devices)

    def needs(self, name: str | None) -> int:
        """Estimate the bytes that a model takes. Raises NoMemory if that exceeds --models-memory."""
        path, options = self._find(name)
        others = files_among(options["draft"], options["companion"])
        kinds = SideOptions(type_k=self.engine.type_k, type_v=self.engine.type_v)
        cells = (self.server.parallel or MIN_INTERACTIVE) * options["n_ctx"]
        return self._allowed(name, expected_bytes(path, others, cells, kinds))

    def _find(self, name: str | None) -> tuple[Path, dict[str, Any]]:
        return find(self.models.of(name), at_once=self.server.parallel or 1)

    def _allowed(self, name: str | None, nbytes: int) -> int:
        most = self.server.models_memory
        if most is not None and nbytes > 1e9 * most:
            what = f"{name or load_manifest().default_target} takes {nbytes / 1e9:.3g} GB and models may take {most:g}"
            raise NoMemory(what, "raise --models-memory, or lower -c or --parallel")
        return nbytes

    def load(self, name: str | None) -> tuple[Batch, ServerSettings]:
        """Load a model and make it ready to answer. name: the name that clients use, None for the default target."""
        server = self.server
        path, arguments = self._find(name)
        rule, word = self.drafts.rule, self.models.of(name).model
        sampling = self.sampler.sampling(suggested=self.sampler.suggested(path, word or ""))
        budget = server.reasoning_budget
        settings = Settings(
            sampling, rule, server.max_tokens, self.system.system, reasoning_budget=budget
        )
        batch = Batch(
            str(path), length=self.drafts.length, draft_max=self.drafts.draft_max, settings=settings,
            parallel=server.parallel, interactive=True, token_gap=server.token_gap, cache_ram=self.cache.cache_ram,
            prompt_cache=self.cache.prompt_cache, memory=self.cache.memory, **{**arguments, **self.engine.arguments},
        )  # fmt: skip
        try:
            batch.prepare()
            self._allowed(name, batch.nbytes)
        except BaseException:
            batch.close()
            raise
        return batch, server.serving(name or load_manifest().default_target)

    def embedders(self) -> list[Embedder]:
        from pyspec.serve.fleet import Embedder  # noqa: PLC0415 - takes a moment, and few need it

        models, engine, found = self.models, self.engine, []
        for word in self.server.embed:
            with store_progress() as progress:
                path = resolve(word, progress)
            how = {
                "n_gpu_layers": models.n_gpu_layers, "devices": models.devices, "n_threads": models.threads,
                "trust": models.trust_model, "extra_buffers": models.extra_buffers, "n_batch": engine.n_batch,
            }  # fmt: skip
            found.append(Embedder(served_name(word), path, self.server.queue, **how))
        return found


@command(examples=EXAMPLES)
def serve(
    server: ServerOptions,
    system: SystemOptions,
    cache: KeptOptions,
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
    from pyspec.serve.fleet import (  # noqa: PLC0415
        DrainingServer,
        OtherModels,
        leave_hung,
    )

    hush_llama(engine.verbose)
    listener = _listen(server.host, server.port)
    loader = Loader(server, system, cache, models, drafts, sampler, engine)
    several = loader.several  # refuses options before anything is loaded
    port = listener.getsockname()[1]
    batch, serving = loader.load(models.first)
    with batch:
        catalogue = server.models_max > max(1, len(models.model))
        names = partial(models.names, catalogue=catalogue)
        most = server.models_max or len(models.model)
        others = OtherModels(names, loader.load, most, loader.needs, loader.memory)
        embedders = loader.embedders()
        _announce(server, serving.model, batch.facts, port)
        if batch.placed:
            tell(batch.placed, err=True)
        app = make_app(batch, serving, others if several else None, embedders)
        config = uvicorn.Config(
            app,
            log_config=None,  # log where the rest of pyspec logs
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=3,
            backlog=_BACKLOG,
            limit_concurrency=2 * (batch.parallel + server.queue) + 256,
        )
        draining = DrainingServer(config, app.state.fleet, server.drain)
        draining.run(sockets=[listener])
        leave_hung(app.state.fleet)
        for each in embedders:
            each.close()
    draining.repeat_signal()


def _announce(server: ServerOptions, model: str, facts: dict[str, Any], port: int) -> None:
    shown = f"[{server.host}]" if ":" in server.host else server.host
    how = f"draft {facts['draft']}, up to {facts['parallel']} answers at once"
    tell(f"{model} on http://{shown}:{port}: {how}; Ctrl-C stops it", err=True)
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
        hint = "give another --port, or a --host of this machine"
        raise OptionError(f"cannot listen on {host} port {port}: {reason}", hint) from None
