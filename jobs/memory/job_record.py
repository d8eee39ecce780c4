"""The record of one job in a store: the job, its lease, its stream and its waiters."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from jobs.memory.memory_size import chunks_memory_bytes, copy_exactly
from jobs.model import Job, Json
from jobs.ports import Chunk

# More chunks than any worker streams before a batch of them is written to the disk.
RESUME_NUMBER_GAP = 100_000


class JobRecord:
    """A job and the state that the store keeps about it; owned by the store.

    `transition` is the task that writes a change of the job to the disk, if there is one: until it
    succeeds or fails, the job cannot change in another way. `is_unpublished` marks a job whose id
    no client has received. It is not written to the journal, and is lost when the server ends.
    """

    __slots__ = (
        "_last_number",
        "_waiters",
        "chunks",
        "is_unpublished",
        "job",
        "lease_until",
        "lost_until",
        "lost_worker_id",
        "stream_bytes",
        "taken_until",
        "transition",
    )

    def __init__(self, job: Job, *, is_unpublished: bool = False) -> None:
        self.job = job
        self.is_unpublished = is_unpublished
        self.transition: asyncio.Task[None] | None = None
        # By the monotonic clock; valid only while the job is in progress.
        self.lease_until = 0.0
        # The worker that lost the job last, and until when it may still run it without knowing.
        self.lost_worker_id: str | None = None
        self.lost_until = 0.0
        self.chunks: list[Chunk] = []
        # (attempt, number) of the last chunk that `take_chunks` has returned.
        self.taken_until = (0, 0)
        self.stream_bytes = 0
        self._last_number = 0
        self._waiters: list[asyncio.Future[bool]] = []

    def worker_still_running(self, now: float) -> str | None:
        """Return the worker that has lost the job but may still run it, if there is one."""
        return self.lost_worker_id if now < self.lost_until else None

    @property
    def stream_memory_bytes(self) -> int:
        """How much memory the chunks take; `stream_bytes` counts their values alone."""
        return chunks_memory_bytes(self.stream_bytes, len(self.chunks))

    def clear_stream(self) -> int:
        """Drop the chunks of an earlier attempt; return how much memory they took."""
        dropped_bytes, self.stream_bytes = self.stream_memory_bytes, 0
        self.chunks = []
        self._last_number = 0
        return dropped_bytes

    def restore_stream(self, chunks: Sequence[Chunk]) -> None:
        """Restore the stream of a job whose worker survived a restart of the store.

        The last chunks before the restart may not have been written, although readers received
        them. New chunks are numbered with a gap after the saved ones, because a reader would take a
        chunk with a repeated number for one that it has already read.
        """
        self.chunks = list(chunks)
        self.stream_bytes = sum(len(chunk.value) for chunk in chunks)
        self._last_number = (chunks[-1].number if chunks else 0) + RESUME_NUMBER_GAP

    def append_chunks(self, values: Sequence[Json]) -> list[Chunk]:
        """Append to the stream of the current attempt and wake its readers."""
        first = self._last_number + 1
        new = [
            Chunk(self.job.attempt, first + i, copy_exactly(value))
            for i, value in enumerate(values)
        ]
        self.chunks += new
        self._last_number += len(new)
        self.stream_bytes += sum(map(len, values))
        self.wake_waiters()
        return new

    def chunks_after(self, position: tuple[int, int]) -> list[Chunk]:
        """Return the chunks after (attempt, number); all if the attempt is an earlier one."""
        index = bisect_right(self.chunks, position, key=lambda chunk: (chunk.attempt, chunk.number))
        return self.chunks[index:]

    def wake_waiters(self) -> None:
        """Wake all tasks that wait for a change of the job."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _resolve(waiter, True)

    async def wait_for_change(self, timeout_s: float) -> bool:
        """Wait for `wake_waiters`; return False after `timeout_s`."""
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        # Takes a third of the time of `asyncio.timeout`; every /runsync waits here.
        timer = loop.call_later(timeout_s, _resolve, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            # `wake_waiters` has already removed it, a timeout has not.
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _resolve(waiter: asyncio.Future[bool], is_woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(is_woken)
