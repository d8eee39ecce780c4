"""The log of a shutdown names the awaited requests, the time limit and the outcome."""

from __future__ import annotations

import asyncio
import logging

import pytest

from emulator.http.shutdown_state import ShutdownState
from emulator.server.graceful_shutdown import GracefulShutdown, RunningWork
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def nothing(limit_s: float = 0) -> None:
    """Nothing runs."""


@pytest.mark.parametrize(
    ("under_way", "phrase"),
    [
        (RunningWork(), "nothing"),
        (RunningWork(jobs=1), "1 job"),
        (RunningWork(jobs=2, requests=1), "2 jobs and 1 request or stream"),
        (RunningWork(3, 2, 1), "3 jobs, 2 requests and streams and 1 batch"),
    ],
)
def test_running_work_is_a_phrase(under_way: RunningWork, phrase: str) -> None:
    assert str(under_way) == phrase


async def test_idle_server_logs_that_nothing_runs(caplog: pytest.LogCaptureFixture) -> None:
    await GracefulShutdown(ShutdownState(), 60, nothing, nothing).wait()
    assert caplog.messages == ["shutting down: nothing is running"]


async def test_shutdown_logs_the_running_work_and_its_end(
    caplog: pytest.LogCaptureFixture, clock: VirtualClock
) -> None:
    counts = [RunningWork(jobs=2, batches=1)]
    done = asyncio.Event()

    async def idle() -> None:
        await done.wait()

    task = asyncio.create_task(
        GracefulShutdown(ShutdownState(), 60, idle, nothing, lambda: counts[-1]).wait()
    )
    await run_ready_tasks()
    counts.append(RunningWork(jobs=1))
    await clock.advance(1)
    counts.append(RunningWork())
    done.set()
    await task
    assert caplog.messages == [
        "shutting down: waiting up to 60 s for 2 jobs and 1 batch; "
        "Ctrl-C or SIGTERM again ends at once",
        "still waiting for 1 job, for up to 59 s",
        "everything that was running has finished",
    ]


@pytest.mark.parametrize(("limit_s", "why"), [(30, "30 s (DRAIN_S) over"), (60, "second signal")])
async def test_cut_work_is_logged_with_the_reason(
    limit_s: float, why: str, caplog: pytest.LogCaptureFixture, clock: VirtualClock
) -> None:
    async def busy() -> None:
        await asyncio.Event().wait()

    ending = GracefulShutdown(ShutdownState(), limit_s, busy, nothing, lambda: RunningWork(jobs=1))
    if limit_s == 60:
        ending.force.set()
    await ending.wait()
    assert clock.elapsed_s == (0 if limit_s == 60 else limit_s)
    assert caplog.messages[-1] == (
        f"{why}: ending 1 job that had not finished; jobs go back to the queue"
    )
