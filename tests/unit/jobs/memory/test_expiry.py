"""When a store checks its jobs for expiry, and when it sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from jobs import JobStatus, MemoryJobStore, NewJob, Policy
from jobs.memory.expiry import ExpiryScheduler
from jobs.model import Limits
from tests.virtual_time import VirtualClock
from tests.waiting import WAIT_S

LONG_MS = 3_600_000


def store_with(clock: VirtualClock, **limits: Any) -> MemoryJobStore:
    return MemoryJobStore(Limits(**limits), now=clock.system, monotonic=clock.monotonic)


@pytest.fixture
def sweeps() -> Iterator[mock.Mock]:
    """A mock that records the expiry sweeps of a store."""
    original = ExpiryScheduler.process_due
    with mock.patch.object(
        ExpiryScheduler, "process_due", autospec=True, side_effect=original
    ) as process_due:
        yield process_due


async def test_sweep_does_not_run_while_nothing_is_due(
    sweeps: mock.Mock, clock: VirtualClock
) -> None:
    store = store_with(clock)
    await store.start()
    # Its deadlines are far in the future.
    await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    await clock.advance(30)
    assert sweeps.call_count == 0
    await store.close()


async def test_earlier_deadline_is_handled_in_time(clock: VirtualClock) -> None:
    store = store_with(clock)
    await store.start()
    await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=LONG_MS)))
    # The store now sleeps until that deadline.
    await clock.advance(1)
    started_at = clock.elapsed_s
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}", policy=Policy(ttl_ms=300)))
    assert await store.wait(job.id, WAIT_S) is None
    assert 0.29 < clock.elapsed_s - started_at < 0.5
    await store.close()


async def test_stop_is_repeated_without_other_events(clock: VirtualClock) -> None:
    store = store_with(clock)
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    await store.receive("e", "w", lease_s=60)
    # The store now sleeps until that lease expires.
    await clock.advance(0.2)
    await store.cancel(job.id)
    for _ in range(2):
        assert await store.receive_stops("w", WAIT_S) == [job.id]
    await store.close()


async def test_retention_is_enforced_without_other_events(clock: VirtualClock) -> None:
    store = store_with(clock, retention_s=60)
    await store.start()
    job = await store.enqueue(NewJob(endpoint="e", input=b"{}"))
    (leased,) = await store.receive("e", "w", lease_s=60)
    await store.ack(job.id, leased.attempt, output=b"1")
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.status is JobStatus.COMPLETED
    await clock.advance(59)
    assert await store.get(job.id) is not None
    await clock.advance(2)
    assert await store.get(job.id) is None
    await store.close()


async def test_sweep_runs_to_drop_expired_stops_though_nothing_is_due(
    sweeps: mock.Mock, clock: VirtualClock
) -> None:
    store = store_with(clock)
    await store.start()
    await clock.advance(200)
    assert sweeps.call_count == 3
    await store.close()
