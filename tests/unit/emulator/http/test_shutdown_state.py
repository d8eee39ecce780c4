"""The end: what is turned away, what may finish, and how long that may take."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, cast

import pytest

from emulator.http.shutdown_state import Drain, DrainGate, DrainingStore
from emulator.server.graceful_shutdown import Ending
from jobs import JobStatus, JobStore, MemoryJobStore, NewJob
from tests.unit.emulator.asgi import Inner, call

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
    "/health",
    "/v2/a/health",
    "/v2/a/job-done/w/j",
    "/v2/a/job-stream/w/j",
    "/v2/a/job-stop/w",
    "/v2/a/ping/w",
)


@pytest.fixture
def drain() -> Drain:
    return Drain()


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.mark.parametrize("path", BEGINS)
async def test_nothing_new_is_begun(inner: Inner, drain: Drain, path: str) -> None:
    app = DrainGate(inner, drain)
    assert (await call(app, path, "POST")).status == 200
    drain.begin()
    told = await call(app, path, "POST")
    assert (told.status, told.error["code"]) == (503, 503)
    assert int(told.headers["retry-after"]) >= 1
    assert "shutting down" in told.error["details"]["reason"]


@pytest.mark.parametrize("path", GOES_ON)
async def test_all_else_goes_on(inner: Inner, drain: Drain, path: str) -> None:
    drain.begin()
    assert (await call(DrainGate(inner, drain), path, "POST")).status == 200


@pytest.mark.parametrize("path", ["/v2/a/job-take/w", "/v2/a/job-take-batch/w"])
async def test_workers_are_told_to_wait_in_the_way_they_heed(
    inner: Inner, drain: Drain, path: str
) -> None:
    drain.begin()
    assert (await call(DrainGate(inner, drain), path)).status == 429


async def test_store_hands_out_nothing_more(drain: Drain) -> None:
    store = MemoryJobStore()
    seen = cast("JobStore", DrainingStore(store, drain))
    polls = [asyncio.create_task(seen.receive("a", f"a/{n}", lease_s=9, wait_s=60)) for n in "12"]
    await asyncio.sleep(0.01)
    drain.begin()
    assert [await poll for poll in polls] == [[], []]
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    assert await seen.receive("a", "a/1", lease_s=9, wait_s=60) == []
    found = await store.get(job.id)
    assert found is not None
    assert (found.status, found.attempt) == (JobStatus.IN_QUEUE, 0)


async def test_job_is_handed_out_or_stays_whenever_the_end_begins(drain: Drain) -> None:
    for turns in range(6):
        store, drain = MemoryJobStore(), Drain()
        seen = cast("JobStore", DrainingStore(store, drain))
        poll = asyncio.create_task(seen.receive("a", "a/1", lease_s=9, wait_s=60))
        await asyncio.sleep(0.001)
        await store.enqueue(NewJob(endpoint="a", input=b"1"))
        for _ in range(turns):
            await asyncio.sleep(0)
        drain.begin()
        assert len(await poll) == len(store.held("a/1"))


async def test_who_waits_for_a_job_that_waits_is_shown_it_at_once(drain: Drain) -> None:
    store = MemoryJobStore()
    seen = cast("JobStore", DrainingStore(store, drain))
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    waiting = asyncio.create_task(seen.wait(job.id, 60))
    await asyncio.sleep(0.01)
    drain.begin()
    found = await waiting
    assert found is not None
    assert found.status is JobStatus.IN_QUEUE


@pytest.mark.parametrize("ends", [True, False])
async def test_who_waits_for_a_job_that_runs_waits_on(drain: Drain, ends: bool) -> None:
    store = MemoryJobStore()
    seen = cast("JobStore", DrainingStore(store, drain))
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    (leased,) = await store.receive("a", "a/1", lease_s=60)
    waiting = asyncio.create_task(seen.wait(job.id, 60))
    await asyncio.sleep(0.01)
    drain.begin()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    if ends:
        await store.ack(job.id, leased.attempt, output=b"1")
    else:
        drain.finish()
    found = await waiting
    assert found is not None
    assert found.status is (JobStatus.COMPLETED if ends else JobStatus.IN_PROGRESS)


async def test_waiting_ends_as_usual_while_all_is_well(drain: Drain) -> None:
    store = MemoryJobStore()
    seen = cast("JobStore", DrainingStore(store, drain))
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    found = await seen.wait(job.id, 0.01)
    assert found is not None
    assert found.status is JobStatus.IN_QUEUE
    assert await seen.wait("nothing", 1) is None
    assert await seen.receive("b", "b/1", lease_s=9, wait_s=0.01) == []
    # All else is the store's own.
    assert seen.available("a")


async def test_time_that_is_up_elsewhere_is_not_swallowed(drain: Drain) -> None:
    async def slow() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await drain.until_begun(slow(), None)


# -- how long it takes -----------------------------------------------------------------------------


class Worker:
    """A local worker as the end sees it: runs until its event, and counts how it was asked."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.asked: list[float] = []

    async def drain(self, limit_s: float) -> None:
        self.asked.append(limit_s)
        if limit_s:
            await self.done.wait()


async def no_job() -> None:
    """Nothing runs."""


async def some_job() -> None:
    """Runs for longer than any end waits."""
    await asyncio.Event().wait()


async def ended(ending: Ending) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(5):
        await ending.wait()
    assert ending.drain.over.is_set()
    return loop.time() - began


async def test_idle_server_ends_at_once(drain: Drain) -> None:
    worker = Worker()
    worker.done.set()
    assert await ended(Ending(drain, 60, no_job, worker.drain)) < 1
    assert worker.asked == [60, 0]


@pytest.mark.parametrize("what", ["local", "elsewhere", "engine"])
async def test_what_runs_gets_its_time_and_no_more(drain: Drain, what: str) -> None:
    worker = Worker()
    if what != "local":
        worker.done.set()
    running = some_job if what == "elsewhere" else no_job
    with drain.answer() if what == "engine" else nullcontext():
        assert 0.2 <= await ended(Ending(drain, 0.2, running, worker.drain)) < 2
    assert worker.asked == [0.2, 0]


async def test_hurry_ends_it(drain: Drain) -> None:
    ending = Ending(drain, 60, some_job, Worker().drain)
    asyncio.get_running_loop().call_later(0.05, ending.hurry.set)
    assert await ended(ending) < 2


async def test_engine_calls_are_counted(inner: Inner, drain: Drain) -> None:
    app = DrainGate(inner, drain)
    inner.gate.clear()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(call(app, path, "POST")) for path in ("/v1/completions", "/runsync")
    ]
    await inner.reached(2)
    assert drain.answering == 1
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert drain.answering == 0
