"""Many concurrent producers whose jobs share a batch on the disk."""

from __future__ import annotations

import asyncio

from jobs import Job
from tests.integration.jobs.stores import SOON_S, Stores, new
from tests.waiting import run_ready_tasks

_PRODUCERS = 32


async def test_waiters_of_a_batch_are_resolved_together(disk: Stores) -> None:
    store = await disk.open()
    enqueue_tasks = [asyncio.create_task(store.enqueue(new())) for _ in range(_PRODUCERS)]
    _, waiting = await asyncio.wait(
        enqueue_tasks, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S
    )
    assert not waiting


async def test_all_continuing_producers_receive_their_ids(disk: Stores) -> None:
    store = await disk.open()

    async def produce() -> list[Job]:
        return [await store.enqueue(new()) for _ in range(10)]

    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(*(produce() for _ in range(_PRODUCERS)))
    ids = {job.id for jobs in results for job in jobs}
    assert len(ids) == 10 * _PRODUCERS
    await disk.close()
    reopened = await disk.open()
    assert {each.id for each in await reopened.list_recent_jobs("e", 1_000)} == ids


async def test_cancelled_waiter_does_not_affect_the_others(disk: Stores) -> None:
    store = await disk.open()
    enqueue_tasks = [asyncio.create_task(store.enqueue(new())) for _ in range(_PRODUCERS)]
    # All wait for the disk after one iteration of the loop.
    await run_ready_tasks(1)
    enqueue_tasks[-1].cancel()
    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(*enqueue_tasks, return_exceptions=True)
        await store.enqueue(new())
    assert isinstance(results[-1], asyncio.CancelledError)
    assert len({job.id for job in results[:-1] if isinstance(job, Job)}) == _PRODUCERS - 1
