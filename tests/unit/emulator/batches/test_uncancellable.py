"""Threads that nobody leaves alone, however often they are told to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from emulator.batches.uncancellable import all_ended, to_its_end


async def test_who_is_cancelled_twice_still_waits_for_the_thread() -> None:
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(20)

    task = asyncio.create_task(to_its_end(work))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.wait({task}, timeout=0)
        assert not task.done()
    go.set()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_the_thread_returns_or_raises_is_its_callers() -> None:
    assert await to_its_end(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await to_its_end(lambda: 1 / 0)


async def test_nobody_waits_for_tasks_that_have_ended() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    await all_ended({task})
