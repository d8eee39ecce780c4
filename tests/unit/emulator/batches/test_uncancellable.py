"""Waiting for threads and tasks although the caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from emulator.batches.uncancellable import run_uncancellable, wait_until_done
from tests.waiting import run_ready_tasks


async def test_run_uncancellable_waits_for_the_thread_when_cancelled_repeatedly() -> None:
    started, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        assert may_end.wait(20)

    task = asyncio.create_task(run_uncancellable(work))
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.wait({task}, timeout=0)
        assert not task.done()
    may_end.set()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_run_uncancellable_returns_the_result_or_error_of_the_thread() -> None:
    assert await run_uncancellable(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await run_uncancellable(lambda: 1 / 0)


async def test_wait_until_done_returns_immediately_when_all_tasks_are_done() -> None:
    task = asyncio.create_task(run_ready_tasks())
    await task
    await wait_until_done({task})
