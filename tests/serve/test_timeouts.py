"""Readers are waited for so long with each message, and not with all of them together."""

from __future__ import annotations

import asyncio
import selectors
from contextlib import closing

import pytest
from helpers.waiting import DEADLINE_S

from pyspec.serve.timeouts import TimedSend


class Jumping(selectors.DefaultSelector):
    """Waits for nobody: the time that a loop would wait has passed at once, however busy the machine is."""

    now = 0.0

    def select(self, timeout=None):
        """What is ready now; where nothing is, the time has passed."""
        found = super().select(0)
        self.now += 0.0 if found else max(timeout or 0.0, 0.0)
        return found


def passing():
    """A loop whose clock goes only while it waits."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    return loop


def run(work, silent=lambda: None, seconds=0.05):
    """What a coroutine over a `TimedSend` of 50 ms comes to; its `work` gets that and the event that lets messages go."""

    async def whole():
        free = asyncio.Event()

        async def send(message):
            await free.wait()

        timed = TimedSend(send, seconds, silent, 0.02)
        try:
            return await work(timed, free)
        finally:
            timed.end()

    with closing(passing()) as loop:
        return loop.run_until_complete(whole())


def test_a_message_that_nobody_takes_ends_it():
    """It is told as a time that was over, at the first message or a later one."""

    async def stuck(timed, free):
        free.set()
        for _ in range(5):
            await timed({})
            await asyncio.sleep(0.03)
        free.clear()
        await timed({})

    with pytest.raises(asyncio.TimeoutError):
        run(stuck)


def test_one_who_reads_is_never_given_up():
    """Not even where all messages together take longer, or nothing is sent for long."""

    async def read(timed, free):
        for _ in range(4):
            free.clear()
            asyncio.get_running_loop().call_later(0.02, free.set)
            await timed({})
        await asyncio.sleep(0.12)
        await timed({})
        return "sent"

    assert run(read) == "sent"


def test_a_cancel_stays_one():
    """Who ends a stream for another reason is not told that its reader was slow."""

    async def cancelled(timed, free):
        asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
        await timed({})

    with pytest.raises(asyncio.CancelledError):
        run(cancelled)


def test_a_silence_is_told_again_and_again():
    """Until something is sent: then it begins anew."""
    told, thrice = [], asyncio.Event()

    def silent():
        told.append(None)
        if len(told) == 3:
            thrice.set()

    async def quiet(timed, free):
        free.set()
        await thrice.wait()
        await timed({})
        return "sent"

    assert run(quiet, silent, DEADLINE_S) == "sent"


def test_a_slow_reader_is_no_silence():
    """Something is being sent: a second message would wait as long."""
    told = []

    async def read(timed, free):
        asyncio.get_running_loop().call_later(0.04, free.set)
        await timed({})
        return len(told)

    assert run(read, lambda: told.append(None), DEADLINE_S) == 0
