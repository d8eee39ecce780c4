"""Virtual time passes only while no task is ready, and code under test sees it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.virtual_time import VirtualClock, virtual_time
from tests.waiting import run_ready_tasks


async def test_all_clocks_advance_together_without_waiting(clock: VirtualClock) -> None:
    loop = asyncio.get_running_loop()
    real_start_s = time.perf_counter()
    monotonic, system, of_loop = time.monotonic(), time.time(), loop.time()
    await clock.advance(3600)
    assert (time.monotonic() - monotonic, time.time() - system) == (3600, 3600)
    assert loop.time() - of_loop == 3600
    assert time.perf_counter() - real_start_s < 10


async def test_advance_runs_the_tasks_that_are_due_in_order(clock: VirtualClock) -> None:
    wake_times: list[float] = []

    async def wake_after(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        wake_times.append(clock.elapsed_s)

    tasks = [asyncio.create_task(wake_after(delay_s)) for delay_s in (3, 1, 2)]
    await clock.advance(2)
    assert wake_times == [1, 2]
    await asyncio.gather(*tasks)
    assert wake_times == [1, 2, 3]


async def test_time_does_not_pass_while_a_task_is_ready(clock: VirtualClock) -> None:
    sleeper = asyncio.create_task(asyncio.sleep(0.001))
    await run_ready_tasks(100)
    assert (clock.elapsed_s, sleeper.done()) == (0, False)
    await sleeper


def test_deadlock_is_an_error() -> None:
    # The error leaves the event loop, so the test needs a loop of its own.
    async def wait_forever() -> None:
        with virtual_time():
            await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no task is ready, and no timer"):
        asyncio.run(wait_forever())


async def test_other_threads_keep_the_real_time(clock: VirtualClock) -> None:
    times_s: list[float] = []
    await clock.advance(3600)
    thread = threading.Thread(target=lambda: times_s.append(time.monotonic()))
    thread.start()
    thread.join()
    assert times_s[0] < time.monotonic() - 1800
