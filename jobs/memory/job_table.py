"""All stored jobs, with their counts by endpoint and their size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from jobs.errors import StoreFull
from jobs.memory.job_record import JobRecord
from jobs.memory.memory_size import ENDPOINT_OVERHEAD_BYTES, job_memory_bytes
from jobs.memory.ready_queue import ReadyQueue
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus, Limits
from jobs.ports import Journal


class Endpoint:
    """The counts and the ready queue of one endpoint.

    Only stored jobs are counted, so the counts are the same after a restart. `totals` holds the
    counts of all endpoints together; all endpoints update it.
    """

    __slots__ = ("_totals", "counts", "queue", "retried")

    def __init__(self, totals: dict[JobStatus, int]) -> None:
        self._totals = totals
        self.queue = ReadyQueue()
        self.counts = dict.fromkeys(JobStatus, 0)
        self.retried = 0

    def add_to_counts(self, job: Job, change: int) -> None:
        """Count a job with its current status: `change` is 1 to add it and -1 to remove it."""
        self.counts[job.status] += change
        self._totals[job.status] += change
        if job.was_retried:
            self.retried += change

    @property
    def is_idle(self) -> bool:
        """Whether the endpoint has no jobs and no task waits for one."""
        return not self.queue.has_waiters and not any(self.counts.values())


class JobTable:
    """Holds all jobs, counts them and the memory that they take, and enforces the limits.

    All additions, changes and removals of jobs go through this class, so that the counts always
    match the jobs. Owned by the store.
    """

    def __init__(self, limits: Limits, journal: Journal, workers: Workers) -> None:
        self._limits = limits
        self._journal = journal
        self._workers = workers
        self._records: dict[str, JobRecord] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self.totals = dict.fromkeys(JobStatus, 0)
        self.total_bytes = 0
        self._reserved_jobs = 0
        # Unpublished jobs whose result the client has received, oldest first. They are removed
        # when new jobs need the space.
        self._delivered: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Return how many jobs there are, including reserved ones."""
        return len(self._records) + self._reserved_jobs

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self._records.values())

    def newest_first(self) -> Iterator[JobRecord]:
        """Yield all records, newest first."""
        return reversed(self._records.values())

    def find(self, job_id: str) -> JobRecord | None:
        """Return the record of a job; None if it is not stored."""
        return self._records.get(job_id)

    def get(self, job_id: str) -> JobRecord:
        """Return the record of a job that is known to be stored."""
        return self._records[job_id]

    def get_or_create_endpoint(self, name: str) -> Endpoint:
        """Return an endpoint, and create it if needed: used when a job or a worker names it."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            endpoint = self._endpoints[name] = Endpoint(self.totals)
            self.total_bytes += ENDPOINT_OVERHEAD_BYTES
        return endpoint

    def find_endpoint(self, name: str) -> Endpoint | None:
        """Return an endpoint; None if it does not exist."""
        return self._endpoints.get(name)

    def endpoint_names(self) -> list[str]:
        """Return the names of all endpoints."""
        return list(self._endpoints)

    def drop_endpoint_if_idle(self, name: str) -> None:
        """Remove an idle endpoint: clients choose the names, so idle ones would accumulate."""
        endpoint = self._endpoints.get(name)
        if endpoint is not None and endpoint.is_idle:
            del self._endpoints[name]
            self.total_bytes -= ENDPOINT_OVERHEAD_BYTES

    def reserve(self, job: Job) -> None:
        """Count a job that is not visible yet. Raises StoreFull."""
        self.make_room(job_memory_bytes(job), jobs=1)
        self._reserved_jobs += 1
        self.total_bytes += job_memory_bytes(job)

    def release_reservation(self, job: Job) -> None:
        """Undo `reserve`."""
        self._reserved_jobs -= 1
        self.total_bytes -= job_memory_bytes(job)

    def add(self, record: JobRecord) -> None:
        """Add a job."""
        job = record.job
        self._records[job.id] = record
        self.get_or_create_endpoint(job.endpoint).add_to_counts(job, 1)
        self.total_bytes += job_memory_bytes(job) + record.stream_memory_bytes
        if job.status is JobStatus.IN_PROGRESS:
            self._workers.add_lease(job.worker_id or "", job.id)

    def save(self, record: JobRecord, job: Job) -> None:
        """Write a job to the journal unless it is unpublished."""
        if not record.is_unpublished:
            self._journal.save(job)

    def set_job(self, record: JobRecord, job: Job) -> None:
        """Replace a job's state and make the new one visible to all readers."""
        before = record.job
        endpoint = self._endpoints[job.endpoint]
        endpoint.add_to_counts(before, -1)
        endpoint.add_to_counts(job, 1)
        self.total_bytes += job_memory_bytes(job) - job_memory_bytes(before)
        record.job = job
        if job.status is JobStatus.IN_PROGRESS:
            if before.status is not JobStatus.IN_PROGRESS:
                self._workers.add_lease(job.worker_id or "", job.id)
        elif before.status is JobStatus.IN_PROGRESS:
            self._workers.remove_lease(before.worker_id or "", job.id)
        if job.status.is_final:
            # Waiters need no other change of state; `append_chunks` wakes the readers of streams.
            record.wake_waiters()

    def clear_stream(self, record: JobRecord) -> None:
        """Drop the chunks of an earlier attempt."""
        self.total_bytes -= record.clear_stream()

    def add_stream_bytes(self, size: int) -> None:
        """Count streamed bytes."""
        self.total_bytes += size

    def mark_delivered(self, job_id: str) -> None:
        """Record that the client of an unpublished job has received its result."""
        self._delivered[job_id] = None

    def remove(self, record: JobRecord) -> None:
        """Remove a job and delete it from the journal."""
        job = record.job
        del self._records[job.id]
        self._delivered.pop(job.id, None)
        endpoint = self._endpoints[job.endpoint]
        endpoint.add_to_counts(job, -1)
        endpoint.queue.remove(job.id)
        self.total_bytes -= job_memory_bytes(job) + record.stream_memory_bytes
        if job.status is JobStatus.IN_PROGRESS:
            self._workers.remove_lease(job.worker_id or "", job.id)
        if not record.is_unpublished:
            self._journal.delete(job.id)
        record.wake_waiters()
        self.drop_endpoint_if_idle(job.endpoint)

    def make_room(self, size_bytes: int, jobs: int = 0) -> None:
        """Remove delivered results until `size_bytes` more bytes and `jobs` more jobs fit.

        Raises:
            StoreFull: they do not fit even after all delivered results were removed.
        """
        limits = self._limits
        max_jobs = limits.max_jobs - jobs
        max_bytes = limits.max_bytes - size_bytes
        while self._delivered and (len(self) > max_jobs or self.total_bytes > max_bytes):
            job_id, _ = self._delivered.popitem(last=False)
            record = self._records[job_id]
            # It may have been published or retried since its result was delivered.
            if record.is_unpublished and record.transition is None and record.job.status.is_final:
                self.remove(record)
        if len(self) > max_jobs:
            raise StoreFull(f"the job store is full: it keeps at most {limits.max_jobs:,} jobs")
        if self.total_bytes > max_bytes:
            raise StoreFull(f"the job store is full: its jobs may have {limits.max_bytes:,} bytes")
