"""Many concurrent producers: the disk writes for some while others are resolved."""

from __future__ import annotations

import asyncio

from jobs import Job
from tests.integration.jobs.stores import SOON_S, Stores, new

_PRODUCERS = 32


async def test_half_of_many_waiters_of_a_batch_are_resolved_first(disk: Stores) -> None:
    store = await disk.open()
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_PRODUCERS)]
    done, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S)
    half = _PRODUCERS // 2
    assert (done, waiting) == (set(sent[:half]), set(sent[half:]))
    # The others are resolved without another enqueue.
    async with asyncio.timeout(SOON_S):
        assert len({job.id for job in await asyncio.gather(*sent)}) == _PRODUCERS


async def test_few_waiters_are_resolved_together(disk: Stores) -> None:
    store = await disk.open()
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_PRODUCERS - 1)]
    _, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S)
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
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_PRODUCERS)]
    # Runs when the first is resolved and before the second half is.
    sent[0].add_done_callback(lambda _: sent[-1].cancel())
    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(*sent, return_exceptions=True)
        await store.enqueue(new())
    assert isinstance(results[-1], asyncio.CancelledError)
    assert len({job.id for job in results[:-1] if isinstance(job, Job)}) == _PRODUCERS - 1
