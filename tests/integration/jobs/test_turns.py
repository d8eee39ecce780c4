"""Many who hand in jobs at once: the disk writes for some of them while others are told."""

from __future__ import annotations

import asyncio

from jobs import Job
from tests.integration.jobs.stores import SOON_S, Stores, new

_SENDERS = 32


async def test_half_of_those_who_waited_for_one_batch_are_told_first(disk: Stores) -> None:
    store = await disk.open()
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_SENDERS)]
    told, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S)
    half = _SENDERS // 2
    assert (told, waiting) == (set(sent[:half]), set(sent[half:]))
    # The others need nobody to hand in anything more.
    async with asyncio.timeout(SOON_S):
        assert len({job.id for job in await asyncio.gather(*sent)}) == _SENDERS


async def test_a_few_are_told_at_once(disk: Stores) -> None:
    store = await disk.open()
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_SENDERS - 1)]
    _, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S)
    assert not waiting


async def test_senders_that_go_on_are_all_told(disk: Stores) -> None:
    store = await disk.open()

    async def hand_in() -> list[Job]:
        return [await store.enqueue(new()) for _ in range(10)]

    async with asyncio.timeout(SOON_S):
        found = await asyncio.gather(*(hand_in() for _ in range(_SENDERS)))
    ids = {job.id for jobs in found for job in jobs}
    assert len(ids) == 10 * _SENDERS
    await disk.close()
    again = await disk.open()
    assert {each.id for each in await again.list_recent_jobs("e", 1_000)} == ids


async def test_who_leaves_before_being_told_keeps_it_from_nobody(disk: Stores) -> None:
    store = await disk.open()
    sent = [asyncio.create_task(store.enqueue(new())) for _ in range(_SENDERS)]
    # When the first has been told, before the second half is.
    sent[0].add_done_callback(lambda _: sent[-1].cancel())
    async with asyncio.timeout(SOON_S):
        found = await asyncio.gather(*sent, return_exceptions=True)
        await store.enqueue(new())
    assert isinstance(found[-1], asyncio.CancelledError)
    assert len({job.id for job in found[:-1] if isinstance(job, Job)}) == _SENDERS - 1
