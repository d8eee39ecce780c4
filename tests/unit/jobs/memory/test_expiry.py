"""When the clock of a store looks at its jobs, and when it lets them be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from unittest import mock

import pytest

import jobs.memory.expiry
import jobs.memory.store
from jobs import JobStatus, MemoryJobStore, NewJob, Policy
from jobs.limits import Limits
from jobs.memory.expiry import Timekeeper
from tests.waiting import WAIT_S, poll_until, wait_until

LONG_MS = 3_600_000


@pytest.fixture
def looks() -> Iterator[mock.Mock]:
    """How often a store asks what is due."""
    with mock.patch.object(Timekeeper, "over", autospec=True, side_effect=Timekeeper.over) as over:
        yield over


async def test_a_store_with_nothing_due_does_not_look_ten_times_a_second(
    looks: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.0)
    store = MemoryJobStore()
    await store.start()
    # Due one day.
    await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert looks.call_count == 0
    await store.close()


async def test_what_is_due_sooner_than_all_before_is_seen_in_time() -> None:
    store = MemoryJobStore()
    await store.start()
    await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=LONG_MS)))
    # The clock is waiting for that one by now.
    await asyncio.sleep(2 * jobs.memory.store.TICK_S)
    began = time.monotonic()
    late = await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=300)))
    assert await store.wait(late.id, WAIT_S) is None
    assert 0.2 < time.monotonic() - began < WAIT_S / 2
    await store.close()


async def test_a_stop_is_told_again_while_nothing_else_happens() -> None:
    store = MemoryJobStore()
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    await store.receive("e", "w", lease_s=60)
    # The clock is waiting for the end of that lease by now.
    await asyncio.sleep(2 * jobs.memory.store.TICK_S)
    await store.cancel(job.id)
    for _ in range(2):
        assert await store.stops("w", WAIT_S) == [job.id]
    await store.close()


async def test_retention_is_kept_while_nothing_else_happens() -> None:
    store = MemoryJobStore(Limits(retention_s=0.2))
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    (leased,) = await store.receive("e", "w", lease_s=60)
    await store.ack(job.id, leased.attempt, output=b"1")
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.status is JobStatus.COMPLETED

    async def forgotten() -> bool:
        return await store.get(job.id) is None

    await poll_until(forgotten)
    await store.close()


async def test_stops_that_nobody_asks_for_are_dropped_though_nothing_is_due(
    looks: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.0)
    monkeypatch.setattr(jobs.memory.expiry, "_LONGEST_S", 0.01)
    store = MemoryJobStore()
    await store.start()
    await wait_until(lambda: looks.call_count >= 3)
    await store.close()
