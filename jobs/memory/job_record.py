"""What a store keeps of one job besides the job: its lease, its stream, who waits for it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from jobs.model import Job, Json
from jobs.ports import Chunk

# More than any worker streams while a batch is on its way to the disk.
UNSEEN = 100_000


class Entry:
    """One job's place in a store; owned by the store.

    `changing` is set while a change is on its way to the disk: nothing else may happen to the job
    until it is there or has failed. `private` is a job whose id nobody has been told, and of which
    nothing is written: it ends with the server.
    """

    __slots__ = (
        "_number",
        "_waiters",
        "changing",
        "chunks",
        "drained",
        "job",
        "lease_until",
        "lost_by",
        "lost_until",
        "private",
        "stream_bytes",
    )

    def __init__(self, job: Job, *, private: bool = False) -> None:
        self.job = job
        self.private = private
        self.changing: asyncio.Task[None] | None = None
        # By the event loop's clock; means something while the job is in progress.
        self.lease_until = 0.0
        # The worker that lost it last, and until when that may still run it and not know.
        self.lost_by: str | None = None
        self.lost_until = 0.0
        self.chunks: list[Chunk] = []
        self.drained = (0, 0)
        self.stream_bytes = 0
        self._number = 0
        self._waiters: list[asyncio.Future[bool]] = []

    def lost_to(self, now: float) -> str | None:
        """Return the worker that has lost it and had not the time to end it since."""
        return self.lost_by if now < self.lost_until else None

    def begin_stream(self) -> int:
        """Forget an earlier attempt's stream; return how many bytes it had."""
        gone, self.stream_bytes = self.stream_bytes, 0
        self.chunks = []
        self._number = 0
        return gone

    def resume_stream(self, chunks: Sequence[Chunk]) -> None:
        """Take up a stream that a worker goes on with after the store has begun anew.

        Its last chunks may not have been on disk, and readers have seen them: what comes next is
        numbered well past those, or readers would take it for what they know.
        """
        self.chunks = list(chunks)
        self.stream_bytes = sum(len(chunk.value) for chunk in chunks)
        self._number = (chunks[-1].number if chunks else 0) + UNSEEN

    def extend_stream(self, values: Sequence[Json]) -> list[Chunk]:
        """Add to the stream of the current attempt and wake its readers."""
        first = self._number + 1
        new = [Chunk(self.job.attempt, first + at, value) for at, value in enumerate(values)]
        self.chunks += new
        self._number += len(new)
        self.stream_bytes += sum(map(len, values))
        self.wake()
        return new

    def after(self, place: tuple[int, int]) -> list[Chunk]:
        """Return what comes after a place; an earlier attempt's place is before everything."""
        at = bisect_right(self.chunks, place, key=lambda chunk: (chunk.attempt, chunk.number))
        return self.chunks[at:]

    def wake(self) -> None:
        """Let everybody who waits look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _tell(waiter, True)

    async def changed(self, timeout_s: float) -> bool:
        """Wait for `wake`; False after `timeout_s`."""
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        # A third of what `asyncio.timeout` takes: every /runsync waits here.
        timer = loop.call_later(timeout_s, _tell, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            # After a wake-up it is in the list no more.
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _tell(waiter: asyncio.Future[bool], woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(woken)
