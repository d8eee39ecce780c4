"""Streams and progress of running jobs, on each driver."""

from __future__ import annotations

import pytest

from jobs import Chunk, JobStatus, MemoryJobStore, StoreFull
from tests.integration.jobs.stores import Stores, begin, job_of, new, soon, take
from tests.waiting import run_ready_tasks


async def test_read_chunks_returns_the_chunks_after_a_position(store: MemoryJobStore) -> None:
    await store.enqueue(new())
    job = await take(store)
    assert await store.append_chunks(job.id, 1, [b"1", b"2"])
    assert await store.append_chunks(job.id, 1, [b"3"])
    everything = [Chunk(1, 1, b"1"), Chunk(1, 2, b"2"), Chunk(1, 3, b"3")]
    assert await store.read_chunks(job.id, (0, 0), 60) == everything
    assert await store.read_chunks(job.id, (1, 1), 60) == everything[1:]
    assert await store.read_chunks(job.id, (1, 3), 0) == []
    # A client may send a position that does not exist yet.
    assert await store.read_chunks(job.id, (9, 9), 0) == []


async def test_read_chunks_waits_for_a_chunk(store: MemoryJobStore) -> None:
    await store.enqueue(new())
    job = await take(store)
    readers = [await begin(store.read_chunks(job.id, (0, 0), 60)) for _ in range(3)]
    await store.append_chunks(job.id, 1, [b"1"])
    assert [await soon(each) for each in readers] == [[Chunk(1, 1, b"1")]] * 3


async def test_readers_return_when_the_job_ends(store: MemoryJobStore) -> None:
    await store.enqueue(new())
    job = await take(store)
    await store.append_chunks(job.id, 1, [b"1"])
    reader = await begin(store.read_chunks(job.id, (1, 1), 60))
    drained = await store.take_chunks(job.id, 60)
    drainer = await begin(store.take_chunks(job.id, 60))
    await store.ack(job.id, 1, output=b"[1]")
    assert await soon(reader) == []
    assert await soon(drainer) == []
    assert [chunk.value for chunk in drained] == [b"1"]
    assert await store.read_chunks(job.id, (0, 0), 60) == [Chunk(1, 1, b"1")]
    assert not await store.append_chunks(job.id, 1, [b"2"])


async def test_take_chunks_returns_each_chunk_once(store: MemoryJobStore) -> None:
    await store.enqueue(new())
    job = await take(store)
    waiting = [await begin(store.take_chunks(job.id, 60)) for _ in range(2)]
    await store.append_chunks(job.id, 1, [b"1"])
    assert sorted(map(len, [await soon(each) for each in waiting])) == [0, 1]
    await store.append_chunks(job.id, 1, [b"2", b"3"])
    assert [chunk.value for chunk in await store.take_chunks(job.id, 60)] == [b"2", b"3"]
    assert await store.take_chunks(job.id, 0) == []


async def test_new_attempt_starts_a_new_stream(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    await store.append_chunks(job.id, 1, [b"1", b"2"])
    assert len(await store.take_chunks(job.id, 0)) == 2
    await store.nack(job.id, 1, "lost")
    assert await store.read_chunks(job.id, (0, 0), 0) == []
    reader = await begin(store.read_chunks(job.id, (1, 2), 60))
    second = await take(store)
    await run_ready_tasks()
    assert not reader.done()
    await store.append_chunks(second.id, 2, [b"one"])
    assert await soon(reader) == [Chunk(2, 1, b"one")]
    assert await store.take_chunks(job.id, 0) == [Chunk(2, 1, b"one")]


async def test_progress_is_cleared_with_the_attempt(store: MemoryJobStore) -> None:
    """Late progress is ignored (runpod-python#250: progress races completion)."""
    await store.enqueue(new())
    job = await take(store)
    assert await store.save_progress(job.id, 1, b'"half"')
    assert await store.save_progress(job.id, 1, b'"more"')
    assert (await job_of(store, job.id)).progress == b'"more"'
    await store.nack(job.id, 1)
    assert (await job_of(store, job.id)).progress == b""
    job = await take(store)
    await store.ack(job.id, 2, output=b"1")
    assert not await store.save_progress(job.id, 2, b'"late"')
    assert (await job_of(store, job.id)).status is JobStatus.COMPLETED


async def test_append_chunks_is_refused_above_max_stream_bytes(stores: Stores) -> None:
    store = await stores.open(max_stream_bytes=10)
    await store.enqueue(new())
    job = await take(store)
    await store.append_chunks(job.id, 1, [b"x" * 10])
    with pytest.raises(StoreFull, match="10 bytes"):
        await store.append_chunks(job.id, 1, [b"x"])
    assert len(await store.read_chunks(job.id, (0, 0), 0)) == 1
    await store.nack(job.id, 1)
    await take(store)
    assert await store.append_chunks(job.id, 2, [b"x" * 10])


async def test_append_chunks_is_refused_above_max_bytes(stores: Stores) -> None:
    store = await stores.open(max_bytes=1_000_000)
    for number in range(2):
        await store.enqueue(new(number))
    one, two = await store.receive("e", "w", lease_s=30, limit=2)
    await store.append_chunks(one.id, 1, [b"x" * 600_000])
    with pytest.raises(StoreFull, match="1,000,000 bytes"):
        await store.append_chunks(two.id, 1, [b"x" * 600_000])
    await store.nack(one.id, 1)
    assert await store.append_chunks(two.id, 1, [b"x" * 600_000])
