"""The SDK workers that have shown up, and how it is known that one has gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from starlette.exceptions import HTTPException

from emulator.runpod.job_response import worker_key
from emulator.runpod.remote_worker import Worker
from jobs import Job, JobStore, StoreUnavailable

logger = logging.getLogger(__name__)

_TICK_S = 0.25
# What was not heard of for so long, and has nothing to do, is no worker any more: one that is free
# always has a poll open, or comes back from the 5 s it stays away after a 429.
_FORGOTTEN_S = 10.0
# A worker's word that it has a job no more is believed when it has stood for so long: that of a
# second worker of the same name has been found out by then.
_SURE_S = 1.5
# How long a worker that has reported itself unhealthy, or could not start, is shown as such.
_UNHEALTHY_S = 120.0
_MAX_UNHEALTHY = 100
_MAX_REASON_CHARS = 300
# Characters of a list of jobs that is sure to be whole.
_LONGEST_LIST = 60_000
# Workers known at a time; names come from whoever calls.
MOST_WORKERS = 10_000


class Fleet:
    """Knows workers by their long-polls first and by their pings second.

    A worker that is killed takes its connections with it, so a poll that breaks off and is not
    taken up again within `grace_s` is a loss that is noticed at once. Pings come from a process of
    their own that outlives a killed worker: they keep a lease only while no poll has broken off. A
    worker whose handler blocks its loop polls no more, and its last poll stays open: it is held for
    as long as the worker has jobs. What gives no sign at all for `lease_s` is lost as well.

    A worker can also lose a job and live: its result could not be written as JSON or not be
    delivered, or it was started anew under its old name. It then asks for jobs and says that it has
    none, or names others in its pings, and what it has by our book waits again.

    Owned by the event loop.
    """

    def __init__(self, store: JobStore, *, lease_s: float, grace_s: float) -> None:
        self._store = store
        self.lease_s = lease_s
        self._grace_s = grace_s
        self._workers: dict[str, Worker] = {}
        # Set while there are any.
        self._known = asyncio.Event()
        self._local: dict[str, Callable[[], tuple[int, int, int]]] = {}
        self._initializing: dict[str, int] = {}
        # By worker key: until when it is shown, and why it is unhealthy.
        self._unhealthy: dict[str, tuple[float, str]] = {}
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after the workers."""
        self._watch = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """Stop looking after them."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    def worker(self, endpoint: str, name: str) -> Worker:
        """Return a worker, known or new. Raises HTTPException where there are too many."""
        key = worker_key(endpoint, name)
        worker = self._workers.get(key)
        if worker is None:
            self._unhealthy.pop(key, None)
            # One that has jobs is let in: its result must not be refused.
            if len(self._workers) >= MOST_WORKERS and not self._store.list_leased_jobs(key):
                raise HTTPException(
                    429, f"{MOST_WORKERS:,} workers are known, the most there may be"
                )
            worker = self._workers[key] = Worker(endpoint, name)
            self._known.set()
            logger.info("worker %s has joined endpoint %s", name, endpoint)
        return worker

    @property
    def has_workers(self) -> bool:
        """Whether any SDK worker is known, of whatever endpoint."""
        return bool(self._workers)

    def workers(self, endpoint: str) -> list[Worker]:
        """Return an endpoint's workers."""
        return [each for each in self._workers.values() if each.endpoint == endpoint]

    def left(self, endpoint: str, name: str) -> None:
        """Forget a worker whose process is known to have ended; its jobs are looked after."""
        worker = self._workers.get(worker_key(endpoint, name))
        if worker is not None:
            self._leave(worker)

    def held(self, worker: Worker) -> Sequence[Job]:
        """Return the jobs that a worker has by our book."""
        return self._store.list_leased_jobs(worker.key)

    def ping(self, endpoint: str, name: str, jobs: str = "") -> None:
        """Take a ping, which says less than a call of the worker itself: it may outlive it.

        It names the worker's `jobs`, with commas between them. One that names none says nothing:
        that of an older SDK never does.
        """
        key = worker_key(endpoint, name)
        worker = self._workers.get(key)
        if worker is None:
            if not self._store.list_leased_jobs(key):
                return
            # From before the server's last start, and in a handler that blocks it.
            worker = self.worker(endpoint, name)
        if not worker.dropped:
            worker.seen_at = time.monotonic()
            # A longer list is cut by the SDK.
            if 0 < len(jobs) < _LONGEST_LIST:
                worker.names(frozenset(jobs.split(",")), self.held(worker))

    def show_local(self, endpoint: str, slots: Callable[[], tuple[int, int, int]]) -> None:
        """Count the local worker's slots, as workers, among an endpoint's.

        Those idle, running and unhealthy are asked for when they are told: an engine may be given
        up while nothing else happens.
        """
        self._local[endpoint] = slots

    def show_initializing(self, endpoint: str, count: int) -> None:
        """Count workers that have been started and have not asked for a job yet."""
        self._initializing[endpoint] = count

    def show_unhealthy(self, endpoint: str, name: str, reason: str) -> None:
        """Show a worker as unhealthy for a while, until it asks for jobs, with its last words."""
        # A worker's words may have control characters in them.
        shown = "".join(each if each.isprintable() else " " for each in reason[:_MAX_REASON_CHARS])
        logger.error("worker %s is unhealthy: %s", name, shown)
        key = worker_key(endpoint, name)
        self._unhealthy.pop(key, None)
        while len(self._unhealthy) >= _MAX_UNHEALTHY:
            del self._unhealthy[next(iter(self._unhealthy))]
        self._unhealthy[key] = (time.monotonic() + _UNHEALTHY_S, shown)

    def unhealthy(self, endpoint: str) -> dict[str, str]:
        """Return why workers of an endpoint are unhealthy, by their names."""
        now, prefix = time.monotonic(), worker_key(endpoint, "")
        self._unhealthy = {key: each for key, each in self._unhealthy.items() if each[0] > now}
        return {
            key.removeprefix(prefix): reason
            for key, (_, reason) in self._unhealthy.items()
            if key.startswith(prefix)
        }

    def counts(self, endpoint: str) -> dict[str, int]:
        """Return an endpoint's workers as `/health` shows them."""
        local = self._local.get(endpoint)
        idle, running, unhealthy = local() if local is not None else (0, 0, 0)
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
            "unhealthy": unhealthy + len(self.unhealthy(endpoint)),
        }

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if not self._workers:
                self._known.clear()
                await self._known.wait()
            for worker in list(self._workers.values()):
                try:
                    await self._look_at(worker, time.monotonic())
                except StoreUnavailable as error:
                    logger.error("the jobs of worker %s were not given back: %s", worker.key, error)
                except Exception:
                    # Whatever it was, the other workers need looking after.
                    logger.exception("worker %s could not be looked after", worker.key)

    async def _look_at(self, worker: Worker, now: float) -> None:
        held = self._store.list_leased_jobs(worker.key)
        if worker.polling:
            worker.seen_at = now
        elif worker.dropped and now - worker.seen_at > self._grace_s:
            lost = await self._store.reclaim_jobs(worker.key, "its worker went away")
            # It may have come back while that was written.
            if not worker.polling:
                self._leave(worker, f"; {lost} jobs wait again or have failed" if lost else "")
            return
        silent_s = now - worker.seen_at
        if not held and silent_s > _FORGOTTEN_S:
            self._leave(worker)
            return
        self._look_for_twins(worker)
        await self._take_back(worker, held, now)
        if silent_s < self.lease_s:
            for job in held:
                await self._store.extend(job.id, job.attempt, self.lease_s - silent_s)

    def _leave(self, worker: Worker, note: str = "") -> None:
        self._workers.pop(worker.key, None)
        logger.info("worker %s has left endpoint %s%s", worker.name, worker.endpoint, note)

    def _look_for_twins(self, worker: Worker) -> None:
        twins = worker.takes > 1 or worker.stops > 1
        if twins:
            worker.missing.clear()
            if not worker.twins:
                logger.error(
                    "two workers of endpoint %s call themselves %s: give each a RUNPOD_POD_ID of "
                    "its own, or the loss of one is not noticed while the other lives",
                    worker.endpoint,
                    worker.name,
                )
        worker.twins = twins

    async def _take_back(self, worker: Worker, held: Sequence[Job], now: float) -> None:
        """Let what the worker has had no more for a while wait again."""
        attempts = {(job.id, job.attempt): job for job in held}
        for attempt, since in list(worker.missing.items()):
            job = attempts.get(attempt)
            if job is None:
                del worker.missing[attempt]
            elif now - since > _SURE_S:
                await self._store.nack(
                    job.id, job.attempt, "its worker has it no more and has sent no result"
                )
