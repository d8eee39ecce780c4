"""What of a store's jobs is not on disk yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobs.model import Job, JobStatus
from jobs.ports import Chunk

# What one batch may have at most: the event loop makes rows of it between two clients' turns.
MOST_JOBS = 2_000
MOST_CHUNKS = 20_000
MOST_BYTES = 16_000_000


class Pending:
    """The newest state of each job that has changed, not its history; owned by a journal.

    A batch on its way is one as well, cut from what had gathered.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        self.forgotten: dict[str, None] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self.jobs or self.chunks or self.forgotten or self.waiters)

    def save(self, job: Job) -> None:
        """Have a job written as it is now."""
        before = self.jobs.get(job.id)
        self.bytes += job.size - (before.size if before is not None else 0)
        self.jobs[job.id] = job
        if job.status is JobStatus.IN_QUEUE and job.attempt:
            # What its last attempt had streamed is of no use to the next.
            self._drop_chunks(job.id)

    def append(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Have more of a job's stream written."""
        self.chunks.setdefault(job_id, []).extend(chunks)
        self.bytes += _size(chunks)

    def forget(self, job_id: str, *, on_disk: bool) -> None:
        """Have a job removed, if it may be there."""
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self.bytes -= job.size
        self._drop_chunks(job_id)
        if on_disk:
            self.forgotten[job_id] = None

    def split(self) -> list[Pending]:
        """Return all of it as batches, to be written one after the other.

        Removals come first, streams after the jobs they are of. Whoever waits, waits for the last.
        """
        batches = [Pending()]
        batches[0].forgotten = self.forgotten
        for job_id, job in self.jobs.items():
            if len(batches[-1].jobs) >= MOST_JOBS or batches[-1].bytes >= MOST_BYTES:
                batches.append(Pending())
            batches[-1].jobs[job_id] = job
            batches[-1].bytes += job.size
        many = 0
        for job_id, chunks in self.chunks.items():
            if many >= MOST_CHUNKS or batches[-1].bytes >= MOST_BYTES:
                batches.append(Pending())
                many = 0
            batches[-1].append(job_id, chunks)
            many += len(chunks)
        batches[-1].waiters = self.waiters
        return batches

    def put_back(self, batch: Pending) -> None:
        """Take up a batch that was not written, before what has come since."""
        for job_id in batch.forgotten:
            self.forgotten.setdefault(job_id)
        for job_id, job in batch.jobs.items():
            if job_id not in self.jobs and job_id not in self.forgotten:
                self.jobs[job_id] = job
                self.bytes += job.size
        for job_id, chunks in batch.chunks.items():
            now = self.jobs.get(job_id)
            if job_id not in self.forgotten and (now is None or not _fresh(now)):
                self.chunks[job_id] = chunks + self.chunks.get(job_id, [])
                self.bytes += _size(chunks)

    def _drop_chunks(self, job_id: str) -> None:
        self.bytes -= _size(self.chunks.pop(job_id, ()))


def _fresh(job: Job) -> bool:
    return job.status is JobStatus.IN_QUEUE


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.value) for chunk in chunks)
