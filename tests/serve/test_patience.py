"""Readers are waited for so long with each message, and not with all of them together."""

from __future__ import annotations

import asyncio

import pytest

from pyspec.serve.patience import PatientSend


def run(work):
    """What a coroutine over a `PatientSend` of 50 ms comes to; its `work` gets that and the event that lets messages go."""

    async def whole():
        free = asyncio.Event()

        async def send(message):
            await free.wait()

        patient = PatientSend(send, 0.05)
        try:
            return await work(patient, free)
        finally:
            patient.end()

    return asyncio.run(whole())


def test_a_message_that_nobody_takes_ends_it():
    """It is told as a time that was over, at the first message or a later one."""

    async def stuck(patient, free):
        free.set()
        for _ in range(5):
            await patient({})
            await asyncio.sleep(0.03)
        free.clear()
        await patient({})

    with pytest.raises(asyncio.TimeoutError):
        run(stuck)


def test_one_who_reads_is_never_given_up():
    """Not even where all messages together take longer, or nothing is sent for long."""

    async def read(patient, free):
        for _ in range(4):
            free.clear()
            asyncio.get_running_loop().call_later(0.02, free.set)
            await patient({})
        await asyncio.sleep(0.12)
        await patient({})
        return "sent"

    assert run(read) == "sent"


def test_a_cancel_stays_one():
    """Who ends a stream for another reason is not told that its reader was slow."""

    async def cancelled(patient, free):
        asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
        await patient({})

    with pytest.raises(asyncio.CancelledError):
        run(cancelled)
