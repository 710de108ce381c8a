"""Several models behind one server. A model is loaded at its first request; the least recently used one is unloaded for it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspec.batch.run import Batch
from pyspec.errors import EngineError, ModelNotFound, ShuttingDown, TooManyRequests
from pyspec.serve import ServerSettings
from pyspec.serve.pending import AnswerListener
from pyspec.serve.service import Service

_WAIT_S = 30.0  # time for a model's answers to end before it is unloaded


@dataclass(frozen=True)
class OtherModels:
    """Models that requests may name beside the first.

    names: their present names. load: loads one, which takes long. most: how many may be loaded at once, the first included.
    needs: estimates a model's bytes; raises NoMemory for one that cannot be loaded. memory: bytes for all models together; a
    model that needs more is loaded alone.
    """

    names: Callable[[], Sequence[str]]
    load: Callable[[str], tuple[Batch, ServerSettings]]
    most: int
    needs: Callable[[str], int] = lambda _name: 0
    memory: float = math.inf


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
        self._freed = asyncio.Condition()
        self._loading = asyncio.Lock()
        self.draining = False

    @property
    def services(self) -> list[Service]:
        """Services of the loaded models, including one that is being unloaded."""
        return [*self._loaded.values(), *filter(None, [self._leaving])]

    def start(self) -> None:
        """Start the first service in the running loop."""
        self.default.start()

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
        self._still_taking()
        service = self.default if self._others is None else self._loaded.get(name or self._first)
        if service is None:
            async with self._loading:
                service = await self._load(name or self._first)
            self._still_taking()  # loading takes long
        self._users[service] = self._users.get(service, 0) + 1
        if self._loaded.get(own := service.serving.model) is service:
            self._loaded[own] = self._loaded.pop(own)
        return service

    def _still_taking(self) -> None:
        if self.draining:
            raise ShuttingDown("the server is shutting down", "try again in a moment")

    def release(self, service: Service) -> None:
        """Give back a service that `take` returned."""
        self._users[service] -= 1
        if not self._users[service]:
            del self._users[service]
            self._notifying = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._freed:
            self._freed.notify_all()

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
            async with self._freed:
                ended = self._freed.wait_for(lambda: service not in self._users)
                await asyncio.wait_for(ended, _WAIT_S)
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

    async def _unload(self, service: Service, *, free: bool) -> bool:
        """Stop a model's engine, and free the model. Returns False if the engine hangs, and the model is in use."""
        ended = await service.stop()
        if free and ended:
            await asyncio.to_thread(service.batch.close)
        return ended
