"""Random operations on a store, compared with a simple model, on both drivers."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jobs.memory.store
from jobs import (
    Job,
    JobStatus,
    Limits,
    MemoryJobStore,
    NewJob,
    NotRetryable,
    Policy,
    SqliteJournal,
    StoreFull,
)
from jobs.memory.expiry import MAX_START_DELAY_S
from jobs.memory.job_record import RESUME_NUMBER_GAP
from jobs.memory.memory_size import (
    ENDPOINT_OVERHEAD_BYTES,
    chunks_memory_bytes,
    job_memory_bytes,
)

RETENTION_S = 100.0
TTL_S = 500.0
TIMEOUT_S = 60.0
LEASE_S = 30.0
MAX_JOBS = 8
MAX_LOSSES = 3
WORKERS = ("a", "b")


@dataclass
class ModelJob:
    """The state of a job in the model."""

    number: int
    low: bool
    queued_at: float
    # The order in the queue among jobs of the same time.
    turn: int
    status: JobStatus = JobStatus.IN_QUEUE
    attempt: int = 0
    lost_attempts: int = 0
    worker: str | None = None
    started_at: float = 0.0
    lease_until: float = 0.0
    lost_by: str | None = None
    lost_until: float = 0.0
    ended_at: float = 0.0
    output: bytes | None = None
    chunks: list[bytes] = field(default_factory=list)
    taken: int = 0


def group_by_job(ends: list[tuple[str, JobStatus]]) -> dict[str, list[JobStatus]]:
    """Group ends by job: the order among the jobs of a purge is not defined."""
    stored: dict[str, list[JobStatus]] = {}
    for job_id, status in ends:
        stored.setdefault(job_id, []).append(status)
    return stored


class JobStoreModel(RuleBasedStateMachine):
    """A dict of the jobs; the clock advances only by a rule."""

    sqlite: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.time = 0.0
        self.turn = 0
        self.jobs: dict[str, ModelJob] = {}
        self.reported: list[tuple[str, JobStatus]] = []
        self.expected: list[tuple[str, JobStatus]] = []
        self.stops: dict[str, set[str]] = {name: set() for name in WORKERS}
        # When a stop is repeated, by worker and job.
        self.repeated_stops: dict[tuple[str, str], float] = {}
        self.folder = tempfile.TemporaryDirectory()
        self.patch = mock.patch.object(jobs.memory.store, "TICK_S", 3600.0)
        self.patch.start()

    @initialize()
    def open(self) -> None:
        journal = SqliteJournal(Path(self.folder.name) / "jobs.sqlite3") if self.sqlite else None
        self.store = MemoryJobStore(
            Limits(
                max_jobs=MAX_JOBS,
                retention_s=RETENTION_S,
                max_losses=MAX_LOSSES,
            ),
            journal,
            on_ended=lambda job: self.reported.append((job.id, job.status)),
            now=lambda: 1e9 + self.time,
            monotonic=lambda: self.time,
        )
        self.loop.run_until_complete(self.store.start(lambda worker: worker == "a", LEASE_S))

    # -- model ----------------------------------------------------------------------------------

    def of(self, status: JobStatus) -> list[str]:
        return [job_id for job_id, known in self.jobs.items() if known.status is status]

    def queue(self, known: ModelJob, *, same_turn: bool = False) -> None:
        """`same_turn`: of jobs that are lost at the same moment, either may be first."""
        self.turn += not same_turn
        known.turn = self.turn
        known.status = JobStatus.IN_QUEUE
        known.worker = None
        known.chunks, known.taken = [], 0

    def end(self, job_id: str, status: JobStatus, output: bytes | None = None) -> None:
        known = self.jobs[job_id]
        if status in (JobStatus.CANCELLED, JobStatus.TIMED_OUT):
            self.stop(job_id)
        known.status, known.ended_at, known.output = status, self.time, output
        self.expected.append((job_id, status))

    def stop(self, job_id: str) -> None:
        known = self.jobs[job_id]
        if known.worker:
            self.stops[known.worker].add(job_id)
            if self.time - known.started_at < MAX_START_DELAY_S:
                self.repeated_stops[known.worker, job_id] = self.time + MAX_START_DELAY_S
        if known.lost_by and self.time < known.lost_until:
            self.stops[known.lost_by].add(job_id)

    def reclaim(self, job_id: str, *, same_turn: bool = False) -> None:
        """Take a job from a worker that may still run it."""
        known = self.jobs[job_id]
        known.lost_by, known.lost_until = known.worker, self.time + TIMEOUT_S
        self.lose(job_id, same_turn=same_turn)

    def lose(self, job_id: str, *, same_turn: bool = False) -> None:
        known = self.jobs[job_id]
        known.lost_attempts += 1
        if known.lost_attempts >= MAX_LOSSES:
            self.end(job_id, JobStatus.FAILED)
        else:
            self.queue(known, same_turn=same_turn)

    def place(self, job_id: str) -> tuple[bool, float, int]:
        """The sort key of a job in its queue."""
        known = self.jobs[job_id]
        return known.low, known.queued_at, known.turn

    def attempt(self, job_id: str, stale: bool) -> int:
        return self.jobs[job_id].attempt - stale

    # -- rules ----------------------------------------------------------------------------------

    @rule(low=st.booleans())
    def enqueue(self, low: bool) -> None:
        self.turn += 1
        policy = Policy(
            low_priority=low, ttl_ms=int(TTL_S * 1000), execution_timeout_ms=int(TIMEOUT_S * 1000)
        )
        new = NewJob(endpoint="e", input=b"%d" % self.turn, policy=policy)
        try:
            job = self.loop.run_until_complete(self.store.enqueue(new))
        except StoreFull:
            assert len(self.jobs) == MAX_JOBS
        else:
            assert len(self.jobs) < MAX_JOBS
            self.jobs[job.id] = ModelJob(self.turn, low, self.time, self.turn)

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def receive(self, worker: str, limit: int) -> None:
        waiting = self.of(JobStatus.IN_QUEUE)
        result = self.loop.run_until_complete(
            self.store.receive("e", worker, lease_s=LEASE_S, limit=limit)
        )
        assert {job.id for job in result} <= set(waiting)
        assert [self.place(job.id) for job in result] == sorted(map(self.place, waiting))[:limit]
        for job in result:
            known = self.jobs[job.id]
            known.status, known.worker = JobStatus.IN_PROGRESS, worker
            known.attempt += 1
            known.started_at = self.time
            known.lease_until = self.time + LEASE_S
            assert job.attempt == known.attempt
            self.stops[worker].discard(job.id)
            self.repeated_stops.pop((worker, job.id), None)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), stale=st.booleans(), error=st.booleans(), output=st.binary(max_size=3))
    def ack(self, data: st.DataObject, stale: bool, error: bool, output: bytes) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        accepted = self.loop.run_until_complete(
            self.store.ack(
                job_id,
                self.attempt(job_id, stale),
                output=output,
                error="no" if error else None,
            )
        )
        assert accepted == (known.status is JobStatus.IN_PROGRESS and not stale)
        if accepted:
            self.end(job_id, JobStatus.FAILED if error else JobStatus.COMPLETED, output)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), stale=st.booleans(), lost=st.booleans())
    def nack(self, data: st.DataObject, stale: bool, lost: bool) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        accepted = self.loop.run_until_complete(
            self.store.nack(job_id, self.attempt(job_id, stale), "lost" if lost else None)
        )
        assert accepted == (known.status is JobStatus.IN_PROGRESS and not stale)
        if accepted and lost:
            self.lose(job_id)
        elif accepted:
            self.queue(known)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), stale=st.booleans())
    def extend(self, data: st.DataObject, stale: bool) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        accepted = self.loop.run_until_complete(
            self.store.extend(job_id, self.attempt(job_id, stale), LEASE_S)
        )
        assert accepted == (known.status is JobStatus.IN_PROGRESS and not stale)
        if accepted:
            known.lease_until = self.time + LEASE_S

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), stale=st.booleans(), values=st.lists(st.binary(max_size=2), max_size=3))
    def append(self, data: st.DataObject, stale: bool, values: list[bytes]) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        accepted = self.loop.run_until_complete(
            self.store.append_chunks(job_id, self.attempt(job_id, stale), values)
        )
        assert accepted == (known.status is JobStatus.IN_PROGRESS and not stale)
        if accepted:
            known.chunks += values

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        result = self.loop.run_until_complete(self.store.take_chunks(job_id, 0))
        assert [chunk.value for chunk in result] == known.chunks[known.taken :]
        known.taken = len(known.chunks)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        self.loop.run_until_complete(self.store.cancel(job_id))
        if not self.jobs[job_id].status.is_final:
            self.end(job_id, JobStatus.CANCELLED)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        known = self.jobs[job_id]
        is_retryable = known.status in (JobStatus.FAILED, JobStatus.TIMED_OUT)
        try:
            self.loop.run_until_complete(self.store.retry(job_id))
        except NotRetryable:
            assert not is_retryable
        else:
            assert is_retryable
            known.queued_at, known.lost_attempts, known.output = self.time, 0, None
            self.queue(known)

    @rule()
    def purge(self) -> None:
        waiting = self.of(JobStatus.IN_QUEUE)
        assert self.loop.run_until_complete(self.store.purge("e")) == len(waiting)
        for job_id in waiting:
            self.end(job_id, JobStatus.CANCELLED)

    @rule()
    def reset(self) -> None:
        active = [each for each in self.jobs if not self.jobs[each].status.is_final]
        assert self.loop.run_until_complete(self.store.reset("e")) == len(self.jobs)
        for job_id in active:
            self.end(job_id, JobStatus.CANCELLED)
        self.jobs.clear()

    @rule(worker=st.sampled_from(WORKERS))
    def reclaim_jobs(self, worker: str) -> None:
        leased = [
            job_id
            for job_id in self.of(JobStatus.IN_PROGRESS)
            if self.jobs[job_id].worker == worker
        ]
        self.reclaim_in_order(worker, leased)
        assert self.loop.run_until_complete(self.store.reclaim_jobs(worker, "gone")) == len(leased)

    def reclaim_in_order(self, worker: str, leased: list[str]) -> None:
        order = [job.id for job in self.store.list_leased_jobs(worker)]
        assert sorted(order) == sorted(leased)
        for job_id in order:
            self.reclaim(job_id)

    @rule(worker=st.sampled_from(WORKERS))
    def receive_stops(self, worker: str) -> None:
        result = self.loop.run_until_complete(self.store.receive_stops(worker, 0))
        assert sorted(result) == sorted(self.stops[worker])
        self.stops[worker] = set()

    @rule(seconds=st.sampled_from([0.25, 1.0, 20.0, 31.0, 61.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        """Advance the clock from one limit to the next, and sweep at each."""
        until = self.time + seconds
        while True:
            due = min((when, job_id) for when, job_id in [*self.limits(), (until + 1, "")])
            if due[0] > until:
                break
            self.time = max(self.time, due[0])
            self.overdue(due[1])
            self.sweep()
        self.time = until
        self.sweep()

    def sweep(self) -> None:
        self.loop.run_until_complete(self.store.sweep())
        for (worker, job_id), when in list(self.repeated_stops.items()):
            if when <= self.time:
                self.stops[worker].add(job_id)
                del self.repeated_stops[worker, job_id]

    def limits(self) -> list[tuple[float, str]]:
        return [(self.limit(known), job_id) for job_id, known in self.jobs.items()]

    def limit(self, known: ModelJob) -> float:
        if known.status.is_final:
            return known.ended_at + RETENTION_S
        if known.status is JobStatus.IN_QUEUE:
            return known.queued_at + TTL_S
        return min(known.queued_at + TTL_S, known.started_at + TIMEOUT_S, known.lease_until)

    def overdue(self, job_id: str) -> None:
        """Apply all limits that have passed; several may pass at the same time."""
        self.turn += 1
        for each in [each for when, each in sorted(self.limits()) if when <= self.time]:
            known = self.jobs[each]
            if known.status.is_final:
                del self.jobs[each]
            elif known.queued_at + TTL_S <= self.time:
                self.stop(each)
                del self.jobs[each]
            elif known.lease_until <= self.time < known.started_at + TIMEOUT_S:
                self.reclaim(each, same_turn=True)
            else:
                self.end(each, JobStatus.TIMED_OUT)

    @precondition(lambda self: self.sqlite)
    @rule()
    def close_and_open(self) -> None:
        """Restart the store; worker a survives, worker b does not, which counts as no loss."""
        self.loop.run_until_complete(self.store.close())
        self.stops, self.repeated_stops = {name: set() for name in WORKERS}, {}
        order = list(self.jobs)
        self.open()
        for job_id in order:
            known = self.jobs[job_id]
            known.taken = 0
            known.lost_by = None
            if known.status is JobStatus.IN_QUEUE:
                self.turn += 1
                known.turn = self.turn
            if known.status is JobStatus.IN_PROGRESS and known.worker == "b":
                self.queue(known)
            elif known.status is JobStatus.IN_PROGRESS:
                known.lease_until = self.time + LEASE_S

    # -- invariants -----------------------------------------------------------------------------

    @invariant()
    def store_matches_model(self) -> None:
        if not hasattr(self, "store"):
            return
        stored: dict[str, Job] = {
            job.id: job
            for job in self.loop.run_until_complete(self.store.list_recent_jobs("e", 100))
        }
        assert stored.keys() == self.jobs.keys()
        for job_id, known in self.jobs.items():
            job = stored[job_id]
            assert job.input == b"%d" % known.number
            assert (job.status, job.attempt, job.lost_attempts) == (
                known.status,
                known.attempt,
                known.lost_attempts,
            )
            assert job.output == known.output
            if known.status is JobStatus.IN_PROGRESS:
                assert job.worker_id == known.worker
            chunks = self.loop.run_until_complete(self.store.read_chunks(job_id, (0, 0), 0))
            assert [chunk.value for chunk in chunks] == known.chunks
            numbers = [chunk.number for chunk in chunks]
            assert numbers == sorted(set(numbers))
            assert all(number < RESUME_NUMBER_GAP * 100 for number in numbers)
        assert group_by_job(self.reported) == group_by_job(self.expected)
        stats = self.loop.run_until_complete(self.store.stats("e"))
        for status in JobStatus:
            assert stats.counts.get(status, 0) == len(self.of(status))
        assert stats.retried == sum(job.was_retried for job in stored.values())
        assert self.store._state.workers._no_leases.is_set() == (not self.of(JobStatus.IN_PROGRESS))
        waiting = [self.jobs[job_id].queued_at for job_id in self.of(JobStatus.IN_QUEUE)]
        assert stats.oldest_queued_at == (1e9 + min(waiting) if waiting else None)
        table = self.store._state.table
        taken_bytes = len(table.endpoint_names()) * ENDPOINT_OVERHEAD_BYTES
        for job in stored.values():
            streamed = self.jobs[job.id].chunks
            taken_bytes += job_memory_bytes(job)
            taken_bytes += chunks_memory_bytes(sum(map(len, streamed)), len(streamed))
        assert table.total_bytes == taken_bytes

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.loop.run_until_complete(self.store.close())
        self.loop.close()
        self.patch.stop()
        self.folder.cleanup()


class SqliteJobStoreModel(JobStoreModel):
    sqlite = True


JobStoreModel.TestCase.settings = settings(
    max_examples=settings().max_examples * 5 // 8, stateful_step_count=40
)
SqliteJobStoreModel.TestCase.settings = settings(
    max_examples=settings().max_examples // 16, stateful_step_count=25
)
test_store_in_memory = JobStoreModel.TestCase
test_store_on_sqlite = SqliteJobStoreModel.TestCase
