"""Shutdown: refused requests, requests that may finish, and the time that they have."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from emulator.http.shutdown_state import ShutdownState
from emulator.middleware.draining import DrainGate
from emulator.server.graceful_shutdown import GracefulShutdown
from tests.unit.emulator.asgi import InnerApp, call

BEGINS = (
    "/run",
    "/runsync",
    "/v2/a/run",
    "/retry/1",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/files",
    "/v1/batches",
)
GOES_ON = (
    "/status/1",
    "/stream/1",
    "/cancel/1",
    "/v1/batches/1/cancel",
    "/purge-queue",
    "/reset",
    "/health",
    "/v2/a/health",
    "/v2/a/job-done/w/j",
    "/v2/a/job-stream/w/j",
    "/v2/a/job-stop/w",
    "/v2/a/ping/w",
)


@pytest.fixture
def shutdown() -> ShutdownState:
    return ShutdownState()


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


@pytest.mark.parametrize("path", BEGINS)
async def test_gate_rejects_new_work(inner: InnerApp, shutdown: ShutdownState, path: str) -> None:
    app = DrainGate(inner, shutdown)
    assert (await call(app, path, "POST")).status == 200
    shutdown.start_draining()
    response = await call(app, path, "POST")
    assert response.status == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "shutting down" in response.reason


@pytest.mark.parametrize("path", GOES_ON)
async def test_other_requests_pass_the_gate(
    inner: InnerApp, shutdown: ShutdownState, path: str
) -> None:
    shutdown.start_draining()
    assert (await call(DrainGate(inner, shutdown), path, "POST")).status == 200


@pytest.mark.parametrize("path", ["/v2/a/job-take/w", "/v2/a/job-take-batch/w"])
async def test_gate_answers_job_requests_with_429(
    inner: InnerApp, shutdown: ShutdownState, path: str
) -> None:
    shutdown.start_draining()
    assert (await call(DrainGate(inner, shutdown), path)).status == 429


async def test_foreign_timeout_is_raised(shutdown: ShutdownState) -> None:
    async def slow() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await shutdown.wait_until_draining(slow(), None)


# -- how long it takes -----------------------------------------------------------------------------


class Worker:
    """A local worker that runs until its event is set, and records the limits of its drains."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.drain_limits_s: list[float] = []

    async def drain(self, limit_s: float) -> None:
        self.drain_limits_s.append(limit_s)
        if limit_s:
            await self.done.wait()


async def no_job() -> None:
    """Return immediately, because no job runs."""


async def some_job() -> None:
    """Run for longer than any shutdown waits."""
    await asyncio.Event().wait()


async def ended(ending: GracefulShutdown) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(30):
        await ending.wait()
    assert ending.state.deadline_passed.is_set()
    return loop.time() - began


async def test_idle_server_shuts_down_immediately(shutdown: ShutdownState) -> None:
    worker = Worker()
    worker.done.set()
    assert await ended(GracefulShutdown(shutdown, 60, no_job, worker.drain)) < 1
    assert worker.drain_limits_s == [60, 0]


@pytest.mark.parametrize("what", ["local", "elsewhere", "engine"])
async def test_running_work_is_waited_for_up_to_the_limit(
    shutdown: ShutdownState, what: str
) -> None:
    worker = Worker()
    if what != "local":
        worker.done.set()
    running = some_job if what == "elsewhere" else no_job
    with shutdown.track_request() if what == "engine" else nullcontext():
        assert 0.2 <= await ended(GracefulShutdown(shutdown, 0.2, running, worker.drain)) < 2
    assert worker.drain_limits_s == [0.2, 0]


async def test_force_ends_the_wait(shutdown: ShutdownState) -> None:
    ending = GracefulShutdown(shutdown, 60, some_job, Worker().drain)
    asyncio.get_running_loop().call_later(0.05, ending.force.set)
    assert await ended(ending) < 2


async def test_gate_counts_openai_requests(inner: InnerApp, shutdown: ShutdownState) -> None:
    app = DrainGate(inner, shutdown)
    inner.gate.clear()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(call(app, path, "POST")) for path in ("/v1/completions", "/runsync")
    ]
    await inner.wait_for_calls(2)
    assert shutdown.active_requests == 1
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert shutdown.active_requests == 0
