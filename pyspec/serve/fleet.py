"""The models behind one server: those that answer, loaded as requests name them, those that embed, and the server's end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import llama_cpp
import msgspec
import numpy as np
import uvicorn

from pyspec.batch.run import Batch
from pyspec.errors import EngineError, InputError, ModelNotFound, OptionError, TooManyRequests
from pyspec.gguf.header import read_header
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.serve import ServerSettings
from pyspec.serve.interface import AnswerListener
from pyspec.serve.service import Service, refuse_if

_WAIT_S = 30.0  # time for a model's answers to end before it is unloaded
MAX_INPUTS = 2048  # largest number of texts per request, as OpenAI has it
MAX_ROWS = 2048  # default for the longest text: attention takes memory by its square


@dataclass(frozen=True)
class OtherModels:
    """Models that requests may name beside the first."""

    names: Callable[[], Sequence[str]]  # returns their present names
    load: Callable[[str], tuple[Batch, ServerSettings]]  # takes long
    most: int  # that may be loaded at once, the first included
    needs: Callable[[str], int] = lambda _name: 0  # estimates bytes; raises NoMemory for too many
    memory: float = math.inf  # bytes for all together; a model that needs more is loaded alone


class Fleet:
    """The services of a server by the names of their models. Without others, the first answers requests for any name.

    The caller frees the first model at the end; the fleet frees the others. Only the loop's thread may use it.
    """

    def __init__(
        self,
        batch: Batch,
        serving: ServerSettings,
        answered: AnswerListener,
        others: OtherModels | None = None,
    ) -> None:
        self._answered, self._others = answered, others
        self.default = Service(batch, serving, answered)
        self._first = serving.model
        self._loaded = {serving.model: self.default}  # least recently used first
        self._taken: dict[str, int] = {}  # bytes of models that have been loaded before
        self._leaving: Service | None = None
        self._users: dict[Service, int] = {}
        self._freed = asyncio.Event()  # set where the last request of a model has ended
        self._loading = asyncio.Lock()
        self.draining = False

    @property
    def services(self) -> list[Service]:
        """Services of the loaded models, including one that is being unloaded."""
        return [*self._loaded.values(), *filter(None, [self._leaving])]

    async def stop(self) -> None:
        """Stop every service. A model whose engine hangs is not freed."""
        ends = (self._unload(each, free=each is not self.default) for each in self.services)
        await asyncio.gather(*ends)

    @property
    def hung(self) -> list[Service]:
        """Services whose engine still runs after `stop`."""
        return [service for service in self.services if service.alive]

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and cancel after so many seconds what still runs."""
        self.draining = True
        await asyncio.gather(*(service.drain(seconds) for service in self.services))

    async def names(self) -> list[str]:
        """Names of all models, the first model's first."""
        others = [] if self._others is None else await asyncio.to_thread(self._others.names)
        return list(dict.fromkeys([self._first, *others]))

    @contextlib.asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Service]:
        """A model's service, which stays loaded within the block. Raises ModelNotFound, ShuttingDown or TooManyRequests."""
        service = await self.take(name)
        try:
            yield service
        finally:
            self.release(service)

    async def take(self, name: str | None) -> Service:
        """A model's service, loaded if need be. It stays loaded until `release`."""
        refuse_if(self.draining)
        service = self.default if self._others is None else self._loaded.get(name or self._first)
        if service is None:
            async with self._loading:
                service = await self._load(name or self._first)
            refuse_if(self.draining)  # loading takes long
        self._users[service] = self._users.get(service, 0) + 1
        if self._loaded.get(own := service.serving.model) is service:
            self._loaded[own] = self._loaded.pop(own)
        return service

    def release(self, service: Service) -> None:
        """Give back a service that `take` returned."""
        self._users[service] -= 1
        if not self._users[service]:
            del self._users[service]
            self._freed.set()

    async def _load(self, name: str) -> Service:
        if name in self._loaded:  # by another request meanwhile
            return self._loaded[name]
        others, names = self._others, await self.names()
        if others is None or name not in names:
            shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            raise ModelNotFound(f"there is no model {name[:80]!r} here", f"use {shown}")
        needs = self._taken.get(name)
        if needs is None:
            needs = await asyncio.to_thread(others.needs, name)
        while self._loaded and (len(self._loaded) >= others.most or self._over(needs)):
            await self._make_room(next(self._idle, next(iter(self._loaded))))
        batch, serving = await asyncio.to_thread(others.load, name)
        self._taken[name] = batch.nbytes
        while self._over(batch.nbytes) and (idle := next(self._idle, None)):
            await self._make_room(idle)  # the model takes more than estimated
        service = self._loaded[name] = Service(batch, serving, self._answered)
        service.start()
        return service

    def _over(self, more: int) -> bool:
        """Whether a model of `more` bytes, with those loaded, exceeds the memory."""
        taken = sum(service.batch.nbytes for service in self._loaded.values())
        return self._others is not None and taken + more > self._others.memory

    @property
    def _idle(self) -> Iterator[str]:
        """Models without requests, the least recently used first."""
        return (name for name, service in self._loaded.items() if service not in self._users)

    async def _make_room(self, name: str) -> None:
        """Unload a model once its requests have ended. Raises TooManyRequests, or EngineError for one that hangs."""
        service = self._leaving = self._loaded.pop(name)  # new requests for it wait for the lock
        try:
            await asyncio.wait_for(self._unused(service), _WAIT_S)
        except BaseException as error:
            self._loaded = {name: service, **self._loaded}
            if not isinstance(error, asyncio.TimeoutError):
                raise
            hint = "try again in a moment, or raise --models-max or --models-memory"
            raise TooManyRequests("every loaded model is busy", hint) from None
        finally:
            self._leaving = None
        if not await self._unload(service, free=True):
            # it is listed again: its memory is still in use, and health has to report the fault
            self._loaded = {name: service, **self._loaded}
            raise EngineError(f"the engine of {name} does not stop", "start the server anew")

    async def _unused(self, service: Service) -> None:
        """Return when a model has no requests. Loading waits here, one model at a time."""
        while service in self._users:
            self._freed.clear()
            await self._freed.wait()

    async def _unload(self, service: Service, *, free: bool) -> bool:
        """Stop a model's engine, and free the model. Returns False if the engine hangs, and the model is in use."""
        ended = await service.stop()
        if free and ended:
            await asyncio.to_thread(service.batch.close)
        return ended


class EmbeddingBody(msgspec.Struct):
    """A request's body in OpenAI's or ollama's format."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate: bool | None = None


class Embedder:
    """A model that embeds texts, in a thread of its own.

    name: for clients. queue: requests that may wait. how: options of `SpeculativeLlama`. A model without its own pooling, such as
    a chat model, gives the mean of its last hidden states. Raises OptionError for a model that ranks texts.
    """

    def __init__(self, name: str, path: Path, queue: int = 256, **how: Any) -> None:
        self.name, self._queue, self._waiting = name, queue, 0
        rows = how.pop("n_batch", None) or MAX_ROWS
        header = read_header(path)
        trained, pooling = header.of_arch("context_length"), header.of_arch("pooling_type")
        if pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK:
            raise OptionError(f"{name} ranks texts", "give --embed a model that makes embeddings")
        if pooling in (None, llama_cpp.LLAMA_POOLING_TYPE_NONE):
            how["pooling_type"] = llama_cpp.LLAMA_POOLING_TYPE_MEAN
        if type(trained) is int and trained > 0:
            rows = min(rows, trained)
        how |= {"draft": "none", "embedding": True, "n_ctx": rows, "n_batch": rows}
        self._llm = SpeculativeLlama(path, **how)
        self._thread = ThreadPoolExecutor(1, "pyspec-embedder")

    def close(self) -> None:
        """Free the model after the texts that it reads now."""
        self._thread.shutdown(cancel_futures=True)
        self._llm.close()

    async def answer(self, body: EmbeddingBody) -> dict[str, Any]:
        """OpenAI's response, its vectors of length 1. Raises InputError or TooManyRequests."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not 0 < len(texts) <= MAX_INPUTS:
            raise InputError(f"input has {len(texts)} texts", f"send 1 to {MAX_INPUTS}")
        if body.dimensions is not None and not 1 <= body.dimensions <= self._llm.n_embd():
            raise InputError(f"dimensions is {body.dimensions}", f"use 1 to {self._llm.n_embd()}")
        if self._waiting >= self._queue:
            raise TooManyRequests("too many requests are waiting", "try again in a moment")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._made, body, texts)
        finally:
            self._waiting -= 1

    def _made(self, body: EmbeddingBody, texts: Sequence[str]) -> dict[str, Any]:
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        most = self._llm.n_batch
        longest = max(len(self._llm.tokenize(text.encode())) for text in texts)
        if longest > most and not body.truncate:
            what = f"a text of input has {longest} tokens, and {self.name} takes {most} here"
            raise InputError(what, "shorten it")
        made: Any = self._llm.create_embedding(texts, model=self.name)
        for each in made["data"]:
            vector = np.array(each["embedding"][: body.dimensions], np.float32)
            vector /= max(float(np.linalg.norm(vector)), 1e-12)
            each["embedding"] = vector.tolist()
            if body.encoding_format == "base64":
                each["embedding"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return dict(made)


class DrainingServer(uvicorn.Server):
    """uvicorn's server. SIGTERM gives running answers `seconds` to end; a second one, or SIGINT, cancels them.

    uvicorn raises the signals again as soon as it has ended; here `repeat_signal` does so once everything is written.
    """

    def __init__(self, config: uvicorn.Config, fleet: Fleet, seconds: float) -> None:
        super().__init__(config)
        self._fleet, self._seconds = fleet, seconds
        self._cuts = False
        self._last: int | None = None

    async def main_loop(self) -> None:
        """Serve until a signal comes; then refuse requests, and look for another signal, until those that run have ended."""
        await super().main_loop()
        drain = asyncio.ensure_future(self._fleet.drain(0.0 if self._cuts else self._seconds))
        while not drain.done() and not self._cuts:
            await asyncio.wait({drain}, timeout=0.05)
        await asyncio.gather(drain, self._fleet.drain(0.0))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._cuts = sig != signal.SIGTERM or self.should_exit
        self._last, self.should_exit = sig, True

    def repeat_signal(self) -> None:
        """End the process by the last signal received, if any."""
        if self._last is not None:
            signal.raise_signal(self._last)


def leave_hung(fleet: Fleet) -> None:
    """End the process with status 1 if an engine hangs: freeing its model would crash. The default model is freed if possible."""
    hung = fleet.hung
    if not hung:
        return
    if fleet.default not in hung:
        fleet.default.batch.close()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(1)
