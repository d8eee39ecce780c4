"""The worker's side of a store: jobs are handed out, streamed, ended and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobs.errors import StoreFull
from jobs.failpoints import hit
from jobs.memory.core import Core
from jobs.model import Job, JobStatus, Json
from jobs.ports import Chunk


class WorkerSide(Core):
    """What a store does for whoever runs jobs; the port has the contracts."""

    def available(self, endpoint: str) -> bool:
        """Tell whether a job waits that `receive` would give at once."""
        known = self._ledger.known(endpoint)
        return known is not None and len(known.line) > 0

    def next_job(self, endpoint: str) -> Job | None:
        """Return the job that `receive` would lease first; None when none waits."""
        known = self._ledger.known(endpoint)
        job_id = known.line.first() if known is not None else None
        return self._ledger.entry(job_id).job if job_id is not None else None

    async def wait_available(self, endpoint: str) -> None:
        """Return when there may be one."""
        try:
            await self._ledger.endpoint(endpoint).line.watch()
        finally:
            self._ledger.tidy(endpoint)

    def wake(self, endpoint: str) -> None:
        """Have somebody else look at what waits: whoever was woken for it may not take it."""
        known = self._ledger.known(endpoint)
        if known is not None:
            known.line.wake()

    async def receive(
        self,
        endpoint: str,
        worker_id: str,
        *,
        lease_s: float,
        wait_s: float = 0.0,
        limit: int = 1,
        busy: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` jobs, those first that have waited longest; none after `wait_s`.

        A worker that is `busy` gets none that it has lost: what it says of the run it does not know
        to be lost could not be told from what it says of the new one.
        """
        if wait_s > 0 and not self.available(endpoint):
            try:
                async with asyncio.timeout(wait_s):
                    while not self.available(endpoint):
                        await self._ledger.endpoint(endpoint).line.wait()
            except TimeoutError:
                # Looked at once more: a job may have come in the same turn of the loop.
                pass
            finally:
                self._ledger.tidy(endpoint)
        leased: list[Job] = []
        passed: list[str] = []
        known = self._ledger.known(endpoint)
        while known and len(leased) < limit and (job_id := known.line.pop()) is not None:
            if busy and self._leases.may_still_run(job_id, worker_id):
                passed.append(job_id)
            else:
                job = self._leases.give(job_id, worker_id, lease_s)
                self._on_started(job)
                leased.append(job)
        if known:
            for job_id in passed:
                known.line.push(self._ledger.entry(job_id).job)
        return leased

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Let a lease end no earlier than `lease_s` from now."""
        return self._leases.extend(job_id, attempt, lease_s)

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """End a job with its output or its error; durable when this returns.

        Raises:
            StoreUnavailable: it has not ended; the lease still holds.
        """
        while (entry := self._leases.entry(job_id, attempt)) is not None and entry.changing:
            # The same end, said twice: the second must not be told of success before the first.
            await asyncio.wait({entry.changing})
        if entry is None:
            return False
        status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
        hit("ack")
        ended = entry.job.but(status=status, ended_at=self._now(), output=output, error=error)
        await self._changes.make([ended])
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Give a job back: it waits again, in its old place.

        With a `reason` it counts as lost, and fails when it was lost too often.
        """
        entry = self._leases.entry(job_id, attempt)
        if entry is None or entry.changing is not None:
            return False
        await self._changes.make(self._leases.take_back(entry, reason))
        return True

    async def lose(self, worker_id: str, reason: str, only: str | None = None) -> int:
        """Take all that a worker has from it, or one job; return how many.

        It is believed to be gone. Where it is not, it does not know.
        """
        hit("losing")
        failed: list[Job] = []
        lost = 0
        for job_id in self._workers.held(worker_id):
            if only not in (None, job_id):
                continue
            entry = self._ledger.get(job_id)
            if entry is not None and entry.changing is None:
                failed += self._leases.lose(entry, reason)
                lost += 1
        await self._changes.make(failed)
        return lost

    def held(self, worker_id: str) -> Sequence[Job]:
        """Return the jobs a worker has."""
        entries = map(self._ledger.get, self._workers.held(worker_id))
        return [entry.job for entry in entries if entry is not None]

    async def stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return jobs this worker has to stop; none after `wait_s`. The port says how often."""
        return await self._workers.stops(worker_id, wait_s)

    def stop(self, worker_id: str, job_id: str) -> None:
        """Have a worker stop what it runs of a job, unless it is given that job anew."""
        self._workers.stop(worker_id, job_id, self._monotonic())

    async def idle(self) -> None:
        """Return when no job is in progress."""
        await self._workers.idle()

    async def progress(self, job_id: str, attempt: int, output: Json) -> bool:
        """Keep what a worker says of a job that goes on; False when it is over."""
        entry = self._leases.entry(job_id, attempt)
        if entry is None or entry.changing is not None:
            return False
        self._ledger.become(entry, entry.job.but(progress=output))
        self._ledger.save(entry, entry.job)
        hit("progress")
        return True

    async def append(self, job_id: str, attempt: int, values: Sequence[Json]) -> bool:
        """Add to a job's stream; live at once, on disk soon after. False when it is over.

        Raises:
            StoreFull: so much was streamed that no more can be kept.
        """
        entry = self._leases.entry(job_id, attempt)
        if entry is None or entry.changing is not None:
            return False
        size = sum(map(len, values))
        most = self._limits.max_stream_bytes
        if entry.stream_bytes + size > most:
            raise StoreFull(f"a job may stream {most:,} bytes, this one has more")
        self._ledger.make_room(size)
        self._ledger.count_stream(size)
        chunks = entry.extend_stream(values)
        if not entry.private:
            self._journal.append(job_id, chunks)
        hit("appended")
        await self._journal.room()
        return True

    async def read(self, job_id: str, after: tuple[int, int], wait_s: float) -> list[Chunk]:
        """Return what was streamed after (attempt, number), waiting for some or for the end."""
        deadline = self._monotonic() + wait_s
        entry = self._ledger.get(job_id)
        while entry is not None:
            if chunks := entry.after(after):
                return chunks
            if entry.job.status.final or self._ledger.get(job_id) is not entry:
                break
            if not await entry.changed(deadline - self._monotonic()):
                break
        return []

    async def drain(self, job_id: str, wait_s: float) -> list[Chunk]:
        """Return what no earlier call has returned, in order, waiting for some or for the end."""
        entry = self._ledger.get(job_id)
        if entry is None:
            return []
        await self.read(job_id, entry.drained, wait_s)
        # Looked at again: another reader may have been quicker.
        chunks = entry.after(entry.drained)
        if chunks:
            entry.drained = (chunks[-1].attempt, chunks[-1].number)
        return chunks
