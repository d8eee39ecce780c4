"""All jobs that are kept, and what they amount to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from jobs.errors import StoreFull
from jobs.journal_port import Journal
from jobs.limits import Limits
from jobs.memory.endpoint import Endpoint
from jobs.memory.job_record import Entry
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus


class Ledger:
    """Counts jobs and bytes, by endpoint and by worker, and keeps both within the limits.

    Every way in which a job is added, changed or forgotten leads through here, so that no count can
    come apart from what it counts. Owned by the store.
    """

    def __init__(self, limits: Limits, journal: Journal, workers: Workers) -> None:
        self._limits = limits
        self._journal = journal
        self._workers = workers
        self._entries: dict[str, Entry] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self.totals = dict.fromkeys(JobStatus, 0)
        self._bytes = 0
        self._arriving = 0
        # Results that their sender has got, oldest first: they make room for new jobs.
        self._delivered: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """How many jobs there are, with those on their way in."""
        return len(self._entries) + self._arriving

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def newest(self) -> Iterator[Entry]:
        """Yield all, the newest first."""
        return reversed(self._entries.values())

    @property
    def bytes(self) -> int:
        """How many bytes there are of them."""
        return self._bytes

    def get(self, job_id: str) -> Entry | None:
        """Return a job's entry; None when there is none, or no longer."""
        return self._entries.get(job_id)

    def entry(self, job_id: str) -> Entry:
        """Return the entry of a job that is known to be kept."""
        return self._entries[job_id]

    def endpoint(self, name: str) -> Endpoint:
        """Return an endpoint, which exists as soon as it is named by who sends or takes jobs."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            endpoint = self._endpoints[name] = Endpoint(self.totals)
        return endpoint

    def known(self, name: str) -> Endpoint | None:
        """Return an endpoint if it exists: asking about one must not make it."""
        return self._endpoints.get(name)

    def endpoints(self) -> list[str]:
        """Return the names of all."""
        return list(self._endpoints)

    def tidy(self, name: str) -> None:
        """Drop an endpoint of which nothing is left: anybody may have named it."""
        endpoint = self._endpoints.get(name)
        if endpoint is not None and endpoint.idle:
            del self._endpoints[name]

    def arrive(self, job: Job) -> None:
        """Count a job that nobody can see yet. Raises StoreFull."""
        self.make_room(job.size, jobs=1)
        self._arriving += 1
        self._bytes += job.size

    def refuse(self, job: Job) -> None:
        """Count it no more."""
        self._arriving -= 1
        self._bytes -= job.size

    def add(self, entry: Entry) -> None:
        """Keep a job."""
        job = entry.job
        self._entries[job.id] = entry
        self.endpoint(job.endpoint).count(job, 1)
        self._bytes += job.size + entry.stream_bytes
        if job.status is JobStatus.IN_PROGRESS:
            self._workers.hold(job.worker_id or "", job.id)

    def save(self, entry: Entry, job: Job) -> None:
        """Write a job's state; of one that nobody was told of there is nothing to keep."""
        if not entry.private:
            self._journal.save(job)

    def become(self, entry: Entry, job: Job) -> None:
        """Show a job's new state to all who look or wait."""
        before = entry.job
        endpoint = self._endpoints[job.endpoint]
        endpoint.count(before, -1)
        endpoint.count(job, 1)
        self._bytes += job.size - before.size
        entry.job = job
        if job.status is JobStatus.IN_PROGRESS:
            if before.status is not JobStatus.IN_PROGRESS:
                self._workers.hold(job.worker_id or "", job.id)
        elif before.status is JobStatus.IN_PROGRESS:
            self._workers.release(before.worker_id or "", job.id)
        if job.status.final:
            # Nobody waits for less, or for what is streamed, which is told apart.
            entry.wake()

    def begin_stream(self, entry: Entry) -> None:
        """Forget what an earlier attempt has streamed."""
        self._bytes -= entry.begin_stream()

    def count_stream(self, size: int) -> None:
        """Count what was streamed."""
        self._bytes += size

    def deliver(self, job_id: str) -> None:
        """Note that a job's sender has got the result and never had an id to ask again with."""
        self._delivered[job_id] = None

    def forget(self, entry: Entry) -> None:
        """Keep a job no longer."""
        job = entry.job
        del self._entries[job.id]
        self._delivered.pop(job.id, None)
        endpoint = self._endpoints[job.endpoint]
        endpoint.count(job, -1)
        endpoint.line.remove(job.id)
        self._bytes -= job.size + entry.stream_bytes
        if job.status is JobStatus.IN_PROGRESS:
            self._workers.release(job.worker_id or "", job.id)
        if not entry.private:
            self._journal.forget(job.id)
        entry.wake()
        self.tidy(job.endpoint)

    def make_room(self, size: int, jobs: int = 0) -> None:
        """Forget delivered results, as many as `size` more bytes and so many jobs need.

        Raises:
            StoreFull: all of them would not do.
        """
        limits = self._limits
        most = limits.max_jobs - jobs
        while self._delivered and (len(self) > most or self._bytes + size > limits.max_bytes):
            job_id, _ = self._delivered.popitem(last=False)
            entry = self._entries[job_id]
            # It may have been run again, or its id told, since.
            if entry.private and entry.changing is None and entry.job.status.final:
                self.forget(entry)
        if len(self) > most:
            raise StoreFull(f"{limits.max_jobs:,} jobs are kept, the most that may be")
        if self._bytes + size > limits.max_bytes:
            raise StoreFull(f"the jobs that are kept have {limits.max_bytes:,} bytes, the most")
