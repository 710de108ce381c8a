"""How long a reader is waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Message, Send


class PatientSend:
    """Sends messages, each within so many seconds. There is one timer for all: a stream has a message for each token.

    To be made in the running loop, and ended. Called, it raises asyncio.TimeoutError where the reader takes too long.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None  # that waits for the reader
        self._since, self._late = 0.0, False
        self._timer = self._loop.call_later(seconds, self._look)

    async def __call__(self, message: Message) -> None:
        """Send one."""
        self._task, self._since = asyncio.current_task(), self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._late:
                raise asyncio.TimeoutError from None
            raise
        finally:
            self._task = None

    def _look(self) -> None:
        left = self._seconds
        if self._task is not None:
            left += self._since - self._loop.time()
        if self._task is None or left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._late = True
            self._task.cancel()

    def end(self) -> None:
        """Nothing more is sent."""
        self._timer.cancel()
