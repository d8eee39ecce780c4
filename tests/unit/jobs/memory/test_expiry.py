"""When a store checks its jobs for expiry, and when it sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from unittest import mock

import pytest

import jobs.memory.expiry
import jobs.memory.store
from jobs import JobStatus, MemoryJobStore, NewJob, Policy
from jobs.memory.expiry import ExpiryScheduler
from jobs.model import Limits
from tests.waiting import WAIT_S, poll_until, run_ready_tasks, wait_until

LONG_MS = 3_600_000


@pytest.fixture
def sweeps() -> Iterator[mock.Mock]:
    """A mock that records the expiry sweeps of a store."""
    original = ExpiryScheduler.process_due
    with mock.patch.object(
        ExpiryScheduler, "process_due", autospec=True, side_effect=original
    ) as process_due:
        yield process_due


async def test_sweep_does_not_run_while_nothing_is_due(
    sweeps: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.0)
    store = MemoryJobStore()
    await store.start()
    # Its deadlines are far in the future.
    await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    await run_ready_tasks(1_000)
    assert sweeps.call_count == 0
    await store.close()


async def test_earlier_deadline_is_handled_in_time() -> None:
    store = MemoryJobStore()
    await store.start()
    await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=LONG_MS)))
    # The store now sleeps until that deadline.
    await asyncio.sleep(2 * jobs.memory.store.TICK_S)
    started_at = time.monotonic()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=300)))
    assert await store.wait(job.id, WAIT_S) is None
    assert 0.2 < time.monotonic() - started_at < WAIT_S / 2
    await store.close()


async def test_stop_is_repeated_without_other_events() -> None:
    store = MemoryJobStore()
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    await store.receive("e", "w", lease_s=60)
    # The store now sleeps until that lease expires.
    await asyncio.sleep(2 * jobs.memory.store.TICK_S)
    await store.cancel(job.id)
    for _ in range(2):
        assert await store.receive_stops("w", WAIT_S) == [job.id]
    await store.close()


async def test_retention_is_enforced_without_other_events() -> None:
    store = MemoryJobStore(Limits(retention_s=0.2))
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    (leased,) = await store.receive("e", "w", lease_s=60)
    await store.ack(job.id, leased.attempt, output=b"1")
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.status is JobStatus.COMPLETED

    async def is_removed() -> bool:
        return await store.get(job.id) is None

    await poll_until(is_removed)
    await store.close()


async def test_sweep_runs_to_drop_expired_stops_though_nothing_is_due(
    sweeps: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.0)
    monkeypatch.setattr(jobs.memory.expiry, "_MAX_WAIT_S", 0.01)
    store = MemoryJobStore()
    await store.start()
    await wait_until(lambda: sweeps.call_count >= 3)
    await store.close()
