"""Changes of a store's jobs that are not on the disk yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobs.model import Job, JobStatus
from jobs.ports import Chunk

# Limits of one batch. The event loop builds the rows of a batch without a pause, so a larger one
# would delay its other tasks.
MAX_BATCH_JOBS = 2_000
MAX_BATCH_CHUNKS = 20_000
MAX_BATCH_BYTES = 16_000_000


class WriteBatch:
    """The latest state of each changed job, its new chunks, and the deleted jobs.

    Owned by a journal, which collects changes in one batch and splits it before writing.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        self.deleted: dict[str, None] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self.jobs or self.chunks or self.deleted or self.waiters)

    def save(self, job: Job) -> None:
        """Add the current state of a job."""
        before = self.jobs.get(job.id)
        self.bytes += job.size - (before.size if before is not None else 0)
        self.jobs[job.id] = job
        if job.status is JobStatus.IN_QUEUE and job.attempt:
            # The next attempt starts a new stream.
            self._drop_chunks(job.id)

    def append_chunks(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Add chunks of a job's stream."""
        self.chunks.setdefault(job_id, []).extend(chunks)
        self.bytes += _size(chunks)

    def delete(self, job_id: str, *, on_disk: bool) -> None:
        """Drop the changes of a job, and add its deletion if it may be on the disk."""
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self.bytes -= job.size
        self._drop_chunks(job_id)
        if on_disk:
            self.deleted[job_id] = None

    def split(self) -> list[WriteBatch]:
        """Return the changes as batches within the limits, to be written in this order.

        Deletions come first, and chunks after their jobs. All waiters are in the last batch.
        """
        batches = [WriteBatch()]
        batches[0].deleted = self.deleted
        for job_id, job in self.jobs.items():
            if len(batches[-1].jobs) >= MAX_BATCH_JOBS or batches[-1].bytes >= MAX_BATCH_BYTES:
                batches.append(WriteBatch())
            batches[-1].jobs[job_id] = job
            batches[-1].bytes += job.size
        chunk_count = 0
        for job_id, chunks in self.chunks.items():
            if chunk_count >= MAX_BATCH_CHUNKS or batches[-1].bytes >= MAX_BATCH_BYTES:
                batches.append(WriteBatch())
                chunk_count = 0
            batches[-1].append_chunks(job_id, chunks)
            chunk_count += len(chunks)
        batches[-1].waiters = self.waiters
        return batches

    def put_back(self, batch: WriteBatch) -> None:
        """Merge a batch that was not written; newer changes take precedence."""
        for job_id in batch.deleted:
            self.deleted.setdefault(job_id)
        for job_id, job in batch.jobs.items():
            if job_id not in self.jobs and job_id not in self.deleted:
                self.jobs[job_id] = job
                self.bytes += job.size
        for job_id, chunks in batch.chunks.items():
            newer = self.jobs.get(job_id)
            is_requeued = newer is not None and newer.status is JobStatus.IN_QUEUE
            if job_id not in self.deleted and not is_requeued:
                self.chunks[job_id] = chunks + self.chunks.get(job_id, [])
                self.bytes += _size(chunks)

    def _drop_chunks(self, job_id: str) -> None:
        self.bytes -= _size(self.chunks.pop(job_id, ()))


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.value) for chunk in chunks)
