"""The leases of workers, and the stops they receive."""

from __future__ import annotations

import asyncio
import math

from jobs.memory.workers import STOP_RETENTION_S, Workers
from tests.waiting import run_ready_tasks


async def start_poll(workers: Workers, wait_s: float = 60) -> asyncio.Task[list[str]]:
    task = asyncio.create_task(workers.receive_stops("w", wait_s))
    await run_ready_tasks()
    return task


def test_leased_jobs_are_listed_in_the_order_of_their_leases() -> None:
    workers = Workers()
    for name in "cab":
        workers.add_lease("w", name)
    workers.remove_lease("w", "a")
    workers.remove_lease("w", "unknown")
    workers.remove_lease("unknown", "a")
    assert workers.list_leased_job_ids("w") == ["c", "b"]
    for name in "cb":
        workers.remove_lease("w", name)
    assert list(workers.list_leased_job_ids("w")) == []
    assert len(workers) == 0


async def test_open_poll_receives_each_stop_immediately_without_repeats() -> None:
    workers = Workers()
    poll = await start_poll(workers)
    workers.request_stop("w", "a", now=0)
    workers.request_stop("w", "b", now=0)
    assert await poll == ["a", "b"]
    assert await workers.receive_stops("w", 0) == []
    assert len(workers) == 0


async def test_stop_waits_for_the_next_poll() -> None:
    workers = Workers()
    workers.request_stop("w", "a", now=0)
    assert await workers.receive_stops("w", 60) == ["a"]


async def test_only_one_of_two_polls_of_a_worker_receives_a_stop() -> None:
    workers = Workers()
    both = [await start_poll(workers) for _ in range(2)]
    workers.request_stop("w", "a", now=0)
    assert sorted(await asyncio.gather(*both)) == [[], ["a"]]


async def test_worker_is_dropped_when_its_poll_times_out_or_is_cancelled() -> None:
    workers = Workers()
    assert await workers.receive_stops("w", 0.001) == []
    cancelled = await start_poll(workers)
    assert len(workers) == 1
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert len(workers) == 0


async def test_stop_of_an_earlier_attempt_is_dropped_by_a_new_lease() -> None:
    workers = Workers()
    workers.add_lease("w", "a")
    workers.remove_lease("w", "a")
    workers.request_stop("w", "a", now=0)
    workers.add_lease("w", "a")
    assert await workers.receive_stops("w", 0) == []
    assert workers.list_leased_job_ids("w") == ["a"]


async def test_stop_is_repeated_when_it_is_due() -> None:
    workers = Workers()
    assert workers.next_repeat_at == math.inf
    for name, when in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        workers.repeat_stop_at("w", name, when)
    workers.process_due_stops(1.9)
    assert (await workers.receive_stops("w", 0), workers.next_repeat_at) == ([], 2.0)
    poll = await start_poll(workers)
    workers.process_due_stops(2.0)
    assert (await poll, workers.next_repeat_at) == (["b"], 3.0)
    workers.process_due_stops(4.0)
    assert (await workers.receive_stops("w", 0), workers.next_repeat_at) == (["a"], math.inf)
    assert len(workers) == 0


async def test_stop_is_not_repeated_to_a_worker_with_a_new_lease() -> None:
    workers = Workers()
    for name in "vw":
        workers.repeat_stop_at(name, "a", 1.0)
    workers.add_lease("w", "a")
    workers.process_due_stops(1.0)
    assert (await workers.receive_stops("w", 0), await workers.receive_stops("v", 0)) == ([], ["a"])


async def test_repeated_stop_expires_like_any_other() -> None:
    workers = Workers()
    workers.repeat_stop_at("w", "a", 1.0)
    workers.process_due_stops(STOP_RETENTION_S)
    assert len(workers) == 1
    workers.process_due_stops(STOP_RETENTION_S + 1.0)
    assert len(workers) == 0


async def test_unreceived_stop_expires() -> None:
    workers = Workers()
    workers.request_stop("w", "a", now=0)
    workers.request_stop("w", "b", now=1)
    workers.process_due_stops(STOP_RETENTION_S)
    assert await workers.receive_stops("w", 0) == ["b"]
    workers.request_stop("w", "c", now=0)
    workers.process_due_stops(STOP_RETENTION_S)
    assert len(workers) == 0


async def test_wait_until_idle_returns_when_the_last_lease_ends() -> None:
    workers = Workers()
    await workers.wait_until_idle()
    workers.add_lease("v", "a")
    workers.add_lease("w", "b")
    waiting = asyncio.create_task(workers.wait_until_idle())
    for worker, job in (("v", "a"), ("v", "a"), ("w", "unknown")):
        workers.remove_lease(worker, job)
        await run_ready_tasks()
        assert not waiting.done()
    workers.remove_lease("w", "b")
    async with asyncio.timeout(30):
        await waiting
