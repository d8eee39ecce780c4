"""A job's stream and its waiters."""

from __future__ import annotations

import asyncio

from jobs import Chunk, Job, JobStatus
from jobs.memory.job_record import RESUME_NUMBER_GAP, JobRecord
from jobs.memory.memory_size import CHUNK_OVERHEAD_BYTES
from tests.waiting import run_ready_tasks


def running(attempt: int = 1) -> JobRecord:
    return JobRecord(
        Job(
            id="a",
            endpoint="e",
            input=b"",
            created_at=0.0,
            status=JobStatus.IN_PROGRESS,
            attempt=attempt,
        )
    )


def test_chunks_are_numbered_within_their_attempt() -> None:
    record = running()
    assert record.append_chunks([b"x", b"yy"]) == [Chunk(1, 1, b"x"), Chunk(1, 2, b"yy")]
    assert record.append_chunks([]) == []
    assert record.append_chunks([b"z"]) == [Chunk(1, 3, b"z")]
    assert record.stream_bytes == 4
    assert record.clear_stream() == 4 + 3 * CHUNK_OVERHEAD_BYTES
    assert record.stream_memory_bytes == 0
    record.job = record.job.replace(attempt=2)
    assert record.append_chunks([b"x"]) == [Chunk(2, 1, b"x")]


def test_chunks_after_compares_attempt_and_number() -> None:
    record = running(attempt=2)
    record.append_chunks([b"1", b"2", b"3"])
    values = [
        b"".join(chunk.value for chunk in record.chunks_after(position))
        for position in [(0, 0), (1, 99), (2, 0), (2, 1), (2, 3), (3, 0)]
    ]
    assert values == [b"123", b"123", b"123", b"23", b"", b""]


def test_restored_stream_continues_with_a_gap_in_the_numbers() -> None:
    record = running()
    record.restore_stream([Chunk(1, 1, b"1"), Chunk(1, 2, b"22")])
    assert record.stream_bytes == 3
    assert record.append_chunks([b"3"]) == [Chunk(1, 3 + RESUME_NUMBER_GAP, b"3")]
    empty = running()
    empty.restore_stream([])
    assert empty.append_chunks([b"1"])[0].number == RESUME_NUMBER_GAP + 1


async def test_wake_waiters_wakes_all_and_leaves_no_waiter() -> None:
    record = running()
    waiters = [asyncio.create_task(record.wait_for_change(60)) for _ in range(3)]
    await run_ready_tasks()
    record.wake_waiters()
    assert await asyncio.gather(*waiters) == [True] * 3
    assert not await record.wait_for_change(0.001)
    assert not await record.wait_for_change(0)
    assert not await record.wait_for_change(-1)
    cancelled = asyncio.create_task(record.wait_for_change(60))
    await run_ready_tasks()
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert record._waiters == []
