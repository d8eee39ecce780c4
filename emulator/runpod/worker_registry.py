"""Keeps track of the SDK workers, and reclaims the jobs of workers that are gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from starlette.exceptions import HTTPException

from emulator.runpod.job_response import is_managed, worker_key
from emulator.runpod.remote_worker import RemoteWorker
from jobs import Job, JobStatus, JobStore, StoreUnavailable
from jobs.memory.expiry import MAX_START_DELAY_S

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.25
# A worker without jobs and without calls for this long is removed: a free worker always has an open
# poll, except for the 5 s that it waits after a 429.
_IDLE_EXPIRY_S = 10.0
# A worker's report that it no longer has a job is acted on after this delay. By then a second
# worker of the same name, which may have sent the report, has been noticed.
_MISSING_CONFIRM_S = 1.5
# How long a worker counts as unhealthy after it has reported that, or has failed to start.
_UNHEALTHY_EXPIRY_S = 120.0
# A job that has waited for longer gets the reason.
_EXPLAINED_WAIT_S = 2.0
_MAX_UNHEALTHY = 100
_MAX_REASON_CHARS = 300
# A list of job ids that is shorter than this is complete: the SDK truncates longer lists.
_MAX_JOB_LIST_CHARS = 60_000
# How long a worker may run a job that has ended without it, until it is stopped itself.
_TIME_OUT_GRACE_S = 3.0
_STOP_GRACE_S = 5.0
# The maximum number of registered workers, because any caller can choose new names.
MAX_WORKERS = 10_000


def describe_stop(job: Job) -> str:
    """Return why a worker must stop a job, as a predicate."""
    if job.status is JobStatus.TIMED_OUT:
        return "is past its executionTimeout"
    return "was cancelled" if job.status is JobStatus.CANCELLED else "is past its ttl"


class WorkerRegistry:
    """Registers workers by their calls, and detects lost workers and lost jobs.

    Long-polls come first, pings second. The connections of a killed worker are closed at once, so a
    poll that breaks off and is not replaced within `grace_s` is a lost worker. Pings come from a
    separate process that outlives a killed worker, so they only extend a lease while no poll has
    broken off. A worker whose handler blocks its loop makes no new poll, and its last poll stays
    open: the poll is held for as long as the worker has jobs. A worker that makes no call at all
    for `lease_s` is lost as well.

    A live worker can also lose a job: its result could not be encoded as JSON or not be delivered,
    or the worker was restarted under its old name. It then calls for jobs and reports that it has
    none, or its pings list other jobs. The jobs that are leased to it have failed then, because
    another run would have the same end, unless the worker may have been restarted.

    Owned by the event loop.
    """

    def __init__(self, store: JobStore, *, lease_s: float, grace_s: float) -> None:
        self._store = store
        self.lease_s = lease_s
        self._grace_s = grace_s
        self._workers: dict[str, RemoteWorker] = {}
        # Set while any worker is registered.
        self._has_workers = asyncio.Event()
        self._count_local_slots: dict[str, Callable[[], tuple[int, int, int]]] = {}
        self._explain_wait: dict[str, Callable[[], str | None]] = {}
        self._initializing: dict[str, int] = {}
        # Keyed by worker: the time at which the entry expires, and the reason.
        self._unhealthy: dict[str, tuple[float, str]] = {}
        self._monitor: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start monitoring the workers."""
        self._monitor = asyncio.create_task(self._check_forever())

    async def close(self) -> None:
        """Stop monitoring the workers."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)

    def get_or_register(self, endpoint: str, name: str) -> RemoteWorker:
        """Return a worker; register it if it is new. Raises HTTPException if there are too many."""
        key = worker_key(endpoint, name)
        worker = self._workers.get(key)
        if worker is None:
            self._unhealthy.pop(key, None)
            # A worker that has jobs is always registered: its result must not be refused.
            if len(self._workers) >= MAX_WORKERS and not self._store.list_leased_jobs(key):
                raise HTTPException(
                    429, f"{MAX_WORKERS:,} workers are known, the most there may be"
                )
            worker = self._workers[key] = RemoteWorker(endpoint, name)
            self._has_workers.set()
            logger.info("worker %s has joined endpoint %s", name, endpoint)
        return worker

    @property
    def has_workers(self) -> bool:
        """Whether any endpoint has an SDK worker."""
        return bool(self._workers)

    def is_registered(self, endpoint: str, name: str) -> bool:
        """Return whether a worker has called and has not been removed since."""
        return worker_key(endpoint, name) in self._workers

    def workers(self, endpoint: str) -> list[RemoteWorker]:
        """Return an endpoint's workers."""
        return [worker for worker in self._workers.values() if worker.endpoint == endpoint]

    def forget_worker(self, endpoint: str, name: str) -> None:
        """Remove a worker whose process has ended; the caller reclaims its jobs."""
        worker = self._workers.get(worker_key(endpoint, name))
        if worker is not None:
            self._remove(worker)

    def leased_jobs(self, worker: RemoteWorker) -> Sequence[Job]:
        """Return the jobs that are leased to a worker."""
        return self._store.list_leased_jobs(worker.key)

    def record_ping(self, endpoint: str, name: str, job_ids: str = "") -> bool:
        """Record a ping, which proves less than a call: its process can outlive the worker.

        `job_ids` are the ids of the worker's jobs, separated by commas. An empty list is ignored,
        because older SDKs never send one. Return whether the worker is known.
        """
        key = worker_key(endpoint, name)
        worker = self._workers.get(key)
        if worker is None:
            if not self._store.list_leased_jobs(key):
                return False
            # The worker had its jobs before the server restarted, and its handler blocks its loop.
            worker = self.get_or_register(endpoint, name)
        if not worker.has_broken_poll:
            worker.last_active_at = time.monotonic()
            if 0 < len(job_ids) < _MAX_JOB_LIST_CHARS:
                worker.report_jobs(frozenset(job_ids.split(",")), self.leased_jobs(worker))
        return True

    def record_stop(self, job: Job) -> None:
        """Record that a job has ended while its worker ran it; the worker must stop it soon."""
        worker = self._workers.get(job.worker_id or "")
        if worker is not None:
            grace_s = _TIME_OUT_GRACE_S if job.status is JobStatus.TIMED_OUT else _STOP_GRACE_S
            at = time.monotonic()
            if time.time() - (job.started_at or 0.0) < MAX_START_DELAY_S:
                # The stop may come before the job has begun, and then the second one counts.
                at += MAX_START_DELAY_S
            worker.record_stop(at, grace_s, describe_stop(job))

    def set_local_slots(
        self, endpoint: str, count_slots: Callable[[], tuple[int, int, int]]
    ) -> None:
        """Count the local worker's slots as workers of an endpoint.

        `count_slots` returns the idle, running and unhealthy slots. It is called on each read,
        because the engine may die without an event.
        """
        self._count_local_slots[endpoint] = count_slots

    def local_status(self, endpoint: str) -> str | None:
        """Return the status of an endpoint's local worker; None if the endpoint has none."""
        count_slots = self._count_local_slots.get(endpoint)
        if count_slots is None:
            return None
        idle, running, unhealthy = count_slots()
        if running:
            return "RUNNING"
        if idle:
            return "IDLE"
        return "UNHEALTHY" if unhealthy else "INITIALIZING"

    def set_explain_wait(self, endpoint: str, explain: Callable[[], str | None]) -> None:
        """Let `explain` say why no worker that the server starts takes a job of an endpoint."""
        self._explain_wait[endpoint] = explain

    def explain_waiting_job(self, job: Job) -> str | None:
        """Return what a job waits for that has waited for two seconds; None for any other job."""
        if job.status is not JobStatus.IN_QUEUE or time.time() - job.queued_at <= _EXPLAINED_WAIT_S:
            return None
        return self.explain_wait(job.endpoint)

    def explain_wait(self, endpoint: str) -> str | None:
        """Return what a queued job waits for; None if a worker is about to take it."""
        explain = self._explain_wait.get(endpoint)
        local = self.local_status(endpoint)
        running = [
            worker
            for worker in self.workers(endpoint)
            if worker.is_paused or self._store.list_leased_jobs(worker.key)
        ]
        if local == "IDLE" or len(running) < len(self.workers(endpoint)):
            return None
        if explain is not None and (reason := explain()) is not None:
            return f"the job waits: {reason}"
        if running or local == "RUNNING":
            return "the job waits for a worker that runs other jobs"
        if local is not None:
            state = "being loaded" if local == "INITIALIZING" else "out of order"
            return f"the job waits for the server's own model, which is {state}"
        if explain is not None:
            return "the job waits for a worker, which the server starts when the scaling allows it"
        return f"the job waits: {self._describe_unserved(endpoint)}"

    def explain_unserved(self, endpoint: str) -> str | None:
        """Return why no worker takes the jobs of an endpoint; None if one does or may come.

        Only a server that starts workers can assume that an endpoint's name is wrong.
        """
        is_served = endpoint in self._explain_wait or endpoint in self._count_local_slots
        if is_served or not self._explain_wait or self.workers(endpoint):
            return None
        return self._describe_unserved(endpoint)

    def _describe_unserved(self, endpoint: str) -> str:
        served = ", ".join(sorted({*self._explain_wait, *self._count_local_slots}))
        suffix = f", but of {served}" if served else ""
        return f"no worker asks for jobs of the endpoint {endpoint}{suffix}"

    def set_initializing(self, endpoint: str, count: int) -> None:
        """Set the number of workers that were started and have not called for a job yet."""
        self._initializing[endpoint] = count

    def mark_unhealthy(self, endpoint: str, name: str, reason: str) -> None:
        """Show a worker as unhealthy for a while, or until it calls for jobs."""
        # The reason comes from the worker and may contain control characters.
        printable = "".join(
            char if char.isprintable() else " " for char in reason[:_MAX_REASON_CHARS]
        )
        logger.error("worker %s is unhealthy: %s", name, printable)
        key = worker_key(endpoint, name)
        self._unhealthy.pop(key, None)
        while len(self._unhealthy) >= _MAX_UNHEALTHY:
            del self._unhealthy[next(iter(self._unhealthy))]
        self._unhealthy[key] = (time.monotonic() + _UNHEALTHY_EXPIRY_S, printable)

    def clear_unhealthy(self, endpoint: str, name: str) -> None:
        """Stop showing a worker as unhealthy, because another one has taken its place."""
        self._unhealthy.pop(worker_key(endpoint, name), None)

    def unhealthy_workers(self, endpoint: str) -> dict[str, str]:
        """Return an endpoint's unhealthy workers: the reasons by the workers' names."""
        now, prefix = time.monotonic(), worker_key(endpoint, "")
        self._unhealthy = {key: entry for key, entry in self._unhealthy.items() if entry[0] > now}
        return {
            key.removeprefix(prefix): reason
            for key, (_, reason) in self._unhealthy.items()
            if key.startswith(prefix)
        }

    def count_workers(self, endpoint: str) -> dict[str, int]:
        """Return the numbers of an endpoint's workers by state, as `/health` shows them."""
        count_local_slots = self._count_local_slots.get(endpoint)
        idle, running, unhealthy = (0, 0, 0) if count_local_slots is None else count_local_slots()
        for worker in self.workers(endpoint):
            if self._store.list_leased_jobs(worker.key):
                running += 1
            else:
                idle += 1
        return {
            "idle": idle,
            "initializing": self._initializing.get(endpoint, 0),
            "ready": idle,
            "running": running,
            "throttled": 0,
            "unhealthy": unhealthy + len(self.unhealthy_workers(endpoint)),
        }

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if not self._workers:
                self._has_workers.clear()
                await self._has_workers.wait()
            for worker in list(self._workers.values()):
                try:
                    await self._check(worker, time.monotonic())
                except StoreUnavailable as error:
                    logger.error("the jobs of worker %s were not given back: %s", worker.key, error)
                except Exception:
                    # Keep checking the other workers.
                    logger.exception("worker %s could not be checked", worker.key)

    async def _check(self, worker: RemoteWorker, now: float) -> None:
        """Reclaim lost jobs, extend leases, and remove the worker if it is gone."""
        leased = self._store.list_leased_jobs(worker.key)
        if worker.has_open_poll:
            worker.last_active_at = now
        elif worker.has_broken_poll and now - worker.last_active_at > self._grace_s:
            count = await self._store.reclaim_jobs(worker.key, "its worker went away")
            # The worker may have polled again during the write.
            if not worker.has_open_poll:
                self._remove(worker, f"; {count} jobs wait again or have failed" if count else "")
            return
        silent_s = now - worker.last_active_at
        if not leased and silent_s > _IDLE_EXPIRY_S:
            self._remove(worker)
            return
        self._detect_duplicate_name(worker)
        why = None if is_managed(worker.name) else worker.find_unstopped_job(now)
        if why is not None:
            worker.forget_stop()
            logger.warning(
                "worker %s still runs a job that %s; it was started by hand, so end it and start "
                "it again",
                worker.name,
                why,
            )
        await self._end_missing_jobs(worker, leased, now)
        if silent_s < self.lease_s:
            for job in leased:
                await self._store.extend(job.id, job.attempt, self.lease_s - silent_s)

    def _remove(self, worker: RemoteWorker, note: str = "") -> None:
        self._workers.pop(worker.key, None)
        logger.info("worker %s has left endpoint %s%s", worker.name, worker.endpoint, note)

    def _detect_duplicate_name(self, worker: RemoteWorker) -> None:
        if is_managed(worker.name):
            # The server has given it a name of its own. SDK 1.6 has as many polls as it runs jobs.
            return
        has_duplicate_name = worker.open_take_polls > 1 or worker.open_stop_polls > 1
        if has_duplicate_name:
            worker.missing_attempts.clear()
            if not worker.has_duplicate_name:
                logger.error(
                    "two workers of endpoint %s call themselves %s: give each a RUNPOD_POD_ID of "
                    "its own, or the loss of one is not noticed while the other lives",
                    worker.endpoint,
                    worker.name,
                )
        worker.has_duplicate_name = has_duplicate_name

    async def _end_missing_jobs(
        self, worker: RemoteWorker, leased: Sequence[Job], now: float
    ) -> None:
        """Fail the jobs that the worker has reported missing for long enough, or queue them."""
        jobs = {(job.id, job.attempt): job for job in leased}
        for attempt, since in list(worker.missing_attempts.items()):
            job = jobs.get(attempt)
            if job is None:
                del worker.missing_attempts[attempt]
            elif now - since > _MISSING_CONFIRM_S:
                reason = "its worker has stopped running it and sent no result"
                if worker.may_have_restarted_since(job.started_at or 0.0):
                    await self._store.nack(job.id, job.attempt, reason)
                else:
                    await self._store.ack(job.id, job.attempt, error=f"the job failed: {reason}")
