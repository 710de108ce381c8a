"""`pyspec serve`: OpenAI's and Anthropic's HTTP APIs, and a chat page."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspec.batch import Batch, Settings
from pyspec.batch.room import expected_bytes, room_of_models
from pyspec.batch.run import MIN_INTERACTIVE
from pyspec.cli.command import command, model_names, option, tell
from pyspec.cli.engine_options import EngineOptions, hush_llama
from pyspec.cli.opening import files_among, find
from pyspec.cli.options import (
    DraftOptions,
    KeptOptions,
    ModelOptions,
    SystemOptions,
)
from pyspec.cli.sampler_options import SamplerOptions
from pyspec.cli.server_options import ServerOptions
from pyspec.engine.models import SideOptions
from pyspec.errors import NoMemory, OptionError
from pyspec.hub.locate import found_here, resolve
from pyspec.hub.sources import load_manifest
from pyspec.machine.others import name_of
from pyspec.sampling.limits import MAX_TOKENS
from pyspec.screen.progress import store_progress
from pyspec.serve.settings import ServerSettings, served_name

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
            raise NoMemory(
                f"{name or load_manifest().default_target} takes {nbytes / 1e9:.3g} GB and models may take {most:g}",
                "raise --models-memory, or lower -c or --parallel",
            )
        return nbytes

    def load(self, name: str | None) -> tuple[Batch, ServerSettings]:
        """Load a model and make it ready to answer. name: the name that clients use, None for the default target."""
        server = self.server
        path, arguments = self._find(name)
        rule, word = self.drafts.rule, self.models.of(name).model
        sampling = self.sampler.sampling(suggested=self.sampler.suggested(path, word or ""))
        most = server.max_tokens or MAX_TOKENS
        settings = Settings(
            sampling, rule, most, self.system.system, reasoning_budget=server.reasoning_budget
        )
        batch = Batch(
            str(path),
            length=self.drafts.length,
            draft_max=self.drafts.draft_max,
            settings=settings,
            parallel=server.parallel,
            interactive=True,
            token_gap=server.token_gap,
            cache_ram=self.cache.cache_ram,
            prompt_cache=self.cache.prompt_cache,
            memory=self.cache.memory,
            **{**arguments, **self.engine.arguments},
        )
        try:
            batch.prepare()
            self._allowed(name, batch.nbytes)
        except BaseException:
            batch.close()
            raise
        own = name or load_manifest().default_target
        return batch, server.serving(own if self.several else _called(own, path))

    def embedders(self) -> list[Embedder]:
        from pyspec.serve.embedding import Embedder  # noqa: PLC0415 - takes a moment, and few need it

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


def _called(word: str, path: Path) -> str:
    """Return the name of the only model: its file's known name, or for ollama's files the name asked for."""
    return name_of(path) if path.suffix == ".gguf" or Path(word).exists() else word


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
    from pyspec.serve.drain import DrainingServer, leave_hung  # noqa: PLC0415
    from pyspec.serve.fleet import OtherModels  # noqa: PLC0415
    from pyspec.serve.guard import GuardedProtocol  # noqa: PLC0415

    hush_llama(engine.verbose)
    listener = _listen(server.host, server.port)
    loader = Loader(server, system, cache, models, drafts, sampler, engine)
    port = listener.getsockname()[1]
    batch, serving = loader.load(models.first)
    with batch:
        catalogue = server.models_max > max(1, len(models.model))
        names = partial(models.names, catalogue=catalogue)
        most = server.models_max or len(models.model)
        others = OtherModels(names, loader.load, most, loader.needs, loader.memory)
        _announce(server, serving.model, batch.facts, port)
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
            backlog=_BACKLOG,
            limit_concurrency=2 * (batch.parallel + server.queue) + 256,
        )
        draining = DrainingServer(
            config, app.state.fleet, server.drain, server.idle or 0.0, app.state.activity
        )
        draining.run(sockets=[listener])
        leave_hung(app.state.fleet)
        for each in embedders:
            each.close()
    draining.repeat_signal()


def _announce(server: ServerOptions, model: str, facts: dict[str, Any], port: int) -> None:
    shown = f"[{server.host}]" if ":" in server.host else server.host
    tell(
        f"{model} on http://{shown}:{port}: draft {facts['draft']}, "
        f"up to {facts['parallel']} answers at once; Ctrl-C stops it",
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
