"""One job's stream and those who wait for it."""

from __future__ import annotations

import asyncio

from jobs import Chunk, Job, JobStatus
from jobs.memory.job_record import UNSEEN, Entry


def running(attempt: int = 1) -> Entry:
    return Entry(
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
    entry = running()
    assert entry.extend_stream([b"x", b"yy"]) == [Chunk(1, 1, b"x"), Chunk(1, 2, b"yy")]
    assert entry.extend_stream([]) == []
    assert entry.extend_stream([b"z"]) == [Chunk(1, 3, b"z")]
    assert entry.stream_bytes == 4
    assert entry.begin_stream() == 4
    entry.job = entry.job.but(attempt=2)
    assert entry.extend_stream([b"x"]) == [Chunk(2, 1, b"x")]


def test_what_comes_after_a_place() -> None:
    entry = running(attempt=2)
    entry.extend_stream([b"1", b"2", b"3"])
    values = [
        b"".join(chunk.value for chunk in entry.after(place))
        for place in [(0, 0), (1, 99), (2, 0), (2, 1), (2, 3), (3, 0)]
    ]
    assert values == [b"123", b"123", b"123", b"23", b"", b""]


def test_a_stream_taken_up_again_goes_on_well_past_what_is_known() -> None:
    entry = running()
    entry.resume_stream([Chunk(1, 1, b"1"), Chunk(1, 2, b"22")])
    assert entry.stream_bytes == 3
    assert entry.extend_stream([b"3"]) == [Chunk(1, 3 + UNSEEN, b"3")]
    empty = running()
    empty.resume_stream([])
    assert empty.extend_stream([b"1"])[0].number == UNSEEN + 1


async def test_a_wake_up_reaches_all_and_leaves_nobody_behind() -> None:
    entry = running()
    waiters = [asyncio.create_task(entry.changed(60)) for _ in range(3)]
    await asyncio.sleep(0)
    entry.wake()
    assert await asyncio.gather(*waiters) == [True] * 3
    assert not await entry.changed(0.001)
    assert not await entry.changed(0)
    assert not await entry.changed(-1)
    leaves = asyncio.create_task(entry.changed(60))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait({leaves})
    assert entry._waiters == []
