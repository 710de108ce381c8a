"""Several models behind one server: each loaded when it is first asked for, those unused for longest making room."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspec.batch.run import Batch
from pyspec.errors import EngineError, ModelNotFound, ShuttingDown, TooManyRequests
from pyspec.serve.pending import AnswerListener
from pyspec.serve.service import Service
from pyspec.serve.settings import ServerSettings

_WAIT_S = 30.0
# for the answers of a model that is to make room


@dataclass(frozen=True)
class OtherModels:
    """Which models may be asked for beside the first.

    names: theirs, now. load: makes one ready; takes long. most: how many may be loaded at once, the first included. needs: about
    how many bytes one takes; raises NoMemory for one that cannot be loaded. memory: bytes that all of them may take; one that
    takes more is loaded by itself.
    """

    names: Callable[[], Sequence[str]]
    load: Callable[[str], tuple[Batch, ServerSettings]]
    most: int
    needs: Callable[[str], int] = lambda _name: 0
    memory: float = math.inf


class Fleet:
    """The services of a server by the names of their models. Without others the first answers whatever name is asked for.

    The first model is its caller's to free at the end, others are freed here. For the loop's thread only.
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
        self._loaded = {serving.model: self.default}  # used longest ago first
        self._taken: dict[str, int] = {}  # bytes of those that were loaded once
        self._leaving: Service | None = None
        self._users: dict[Service, int] = {}
        self._freed = asyncio.Condition()
        self._loading = asyncio.Lock()
        self.draining = False

    @property
    def services(self) -> list[Service]:
        """Those that are loaded, one that is to make room among them."""
        return [*self._loaded.values(), *filter(None, [self._leaving])]

    def start(self) -> None:
        """Begin to work, in the loop that runs now."""
        self.default.start()

    async def stop(self) -> None:
        """End what runs. A model whose engine hangs is not freed."""
        ends = (self._unload(each, free=each is not self.default) for each in self.services)
        await asyncio.gather(*ends)

    @property
    def hung(self) -> list[Service]:
        """Those whose engine has not ended, once `stop` has."""
        return [service for service in self.services if service.alive]

    async def drain(self, seconds: float) -> None:
        """Take nothing more; what runs may end for so many seconds, and is then cut."""
        self.draining = True
        await asyncio.gather(*(service.drain(seconds) for service in self.services))

    async def names(self) -> list[str]:
        """Every name that may be asked for, the first model's first."""
        others = [] if self._others is None else await asyncio.to_thread(self._others.names)
        return list(dict.fromkeys([self._first, *others]))

    @contextlib.asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Service]:
        """The service of a model, which stays loaded meanwhile. Raises ModelNotFound, ShuttingDown or TooManyRequests."""
        service = await self.take(name)
        try:
            yield service
        finally:
            self.release(service)

    async def take(self, name: str | None) -> Service:
        """The service of a model, loaded if need be; it stays loaded until it is released."""
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
        """One who took it does not need it any more."""
        self._users[service] -= 1
        if not self._users[service]:
            del self._users[service]
            self._told = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self._freed:
            self._freed.notify_all()

    async def _load(self, name: str) -> Service:
        if name in self._loaded:  # meanwhile
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
            await self._make_room(idle)  # it takes more than was known
        service = self._loaded[name] = Service(batch, serving, self._answered)
        service.start()
        return service

    def _over(self, more: int) -> bool:
        """Whether the models would take more than they may with one that takes so many bytes."""
        taken = sum(service.batch.nbytes for service in self._loaded.values())
        return self._others is not None and taken + more > self._others.memory

    @property
    def _idle(self) -> Iterator[str]:
        """Models that nobody uses, unused for longest first."""
        return (name for name, service in self._loaded.items() if service not in self._users)

    async def _make_room(self, name: str) -> None:
        """Free a model; what it answers may end. Raises TooManyRequests, or EngineError for one that hangs."""
        service = self._leaving = self._loaded.pop(name)  # who asks for it now waits for its return
        try:
            async with self._freed:
                ended = self._freed.wait_for(lambda: service not in self._users)
                await asyncio.wait_for(ended, _WAIT_S)
        except BaseException as error:
            self._loaded = {name: service, **self._loaded}
            if not isinstance(error, asyncio.TimeoutError):
                raise
            raise TooManyRequests(
                "every loaded model is busy",
                "try again in a moment, or raise --models-max or --models-memory",
            ) from None
        finally:
            self._leaving = None
        if not await self._unload(service, free=True):
            # its memory is still in use, and health reports it
            self._loaded = {name: service, **self._loaded}
            raise EngineError(f"the engine of {name} does not stop", "start the server anew")

    async def _unload(self, service: Service, *, free: bool) -> bool:
        """End a model's engine, and free it. False where the engine hangs, and still uses it."""
        ended = await service.stop()
        if free and ended:
            await asyncio.to_thread(service.batch.close)
        return ended
