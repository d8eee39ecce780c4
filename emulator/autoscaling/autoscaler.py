"""SDK workers as processes of this server: started when jobs wait, ended when none do."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from emulator.autoscaling.policy import Demand, count_missing, count_spare
from emulator.autoscaling.worker_process import (
    Process,
    Spawn,
    spawn_supervised,
    worker_command,
    worker_environment,
)
from emulator.config import ScalingPolicy
from emulator.runpod.job_response import worker_key, worker_name
from emulator.runpod.worker_registry import Fleet
from jobs import JobStatus, JobStore

logger = logging.getLogger(__name__)

_PREFIX = "launched-"
_TICK_S = 0.25
# After a SIGTERM to a worker without jobs: its long-polls are answered in a few seconds.
_GRACE_S = 15.0
# The same at the server's end, where no more jobs are handed out.
_FAREWELL_S = 0.5
# RunPod gives a worker seven minutes to load what it has to load.
_JOIN_S = 420.0
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 1.0, 60.0
# A worker that has lived for so long had no fault in its beginnings.
_SOUND_S = 30.0


class ManagedWorker:
    """One worker of the launcher's; owned by it."""

    __slots__ = ("busy_at", "ending_at", "joined", "name", "process", "started_at")

    def __init__(self, name: str, process: Process, now: float) -> None:
        self.name = name
        self.process = process
        self.started_at = now
        # When it last had a job, or asked for its first.
        self.busy_at = now
        self.joined = False
        # When it was told to end.
        self.ending_at: float | None = None


class Autoscaler:
    """Keeps as many workers as an endpoint's scaling asks for; owned by the event loop."""

    def __init__(
        self,
        store: JobStore,
        fleet: Fleet,
        endpoint: str,
        scaling: ScalingPolicy,
        *,
        command: str = "",
        api_key: str | None = None,
        own_key: str | None = None,
        allows_private_targets: bool = True,
        local: str | None = None,
        spawn: Spawn | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._endpoint = endpoint
        self._scaling = scaling
        self._command = worker_command(command)
        self._api_key = api_key
        self._own_key = own_key
        self._allows_private_targets = allows_private_targets
        self._local = worker_key(endpoint, local) if local is not None else None
        self._spawn: Spawn = spawn or spawn_supervised
        self._now = now
        self._wall = wall
        self._url = ""
        self._workers: dict[str, ManagedWorker] = {}
        # So that no name is one of before a restart, whose jobs may still be on the books.
        self._series = secrets.token_hex(3)
        self._number = 0
        self._started_at = -float("inf")
        self._crashes = 0
        self._not_before = -float("inf")
        self._replacing = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, url: str) -> None:
        """Begin, now that the server can be reached at `url`."""
        if self._scaling.max_workers > 0:
            self._url = url
            self._task = asyncio.create_task(self._look_after())

    async def _look_after(self) -> None:
        while True:
            try:
                await self.tick()
            except Exception:
                logger.exception("the workers could not be looked after")
            await asyncio.sleep(_TICK_S)

    async def tick(self) -> None:
        """Take note of what has become of the workers, then end or start some."""
        now = self._now()
        known = {worker.name: worker for worker in self._fleet.workers(self._endpoint)}
        for worker in list(self._workers.values()):
            if worker.process.returncode is not None:
                await self._ended(worker, worker.process.returncode, now)
                continue
            seen = known.get(worker.name)
            if seen is not None and not worker.joined:
                worker.joined, worker.busy_at = True, now
            if self._held(worker):
                worker.busy_at = now
            if worker.ending_at is not None:
                if now - worker.ending_at > _GRACE_S and not self._held(worker):
                    worker.process.kill()
            elif seen is not None and seen.refresh:
                logger.info("%s asked to be replaced", worker.name)
                self._end(worker, now)
                self._replacing += 1
            elif not worker.joined and now - worker.started_at > _JOIN_S:
                logger.error("%s has not asked for a job in %g s", worker.name, _JOIN_S)
                worker.process.kill()
        await self._scale(now)
        starting = sum(not worker.joined for worker in self._live)
        self._fleet.show_initializing(self._endpoint, starting)

    @property
    def _live(self) -> list[ManagedWorker]:
        return [worker for worker in self._workers.values() if worker.ending_at is None]

    def _held(self, worker: ManagedWorker) -> bool:
        return bool(self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)))

    async def _scale(self, now: float) -> None:
        demand = await self._demand()
        idle = [
            worker
            for worker in self._live
            if worker.joined and now - worker.busy_at >= self._scaling.idle_timeout_s
        ]
        idle.sort(key=lambda worker: worker.busy_at)
        for worker in idle[: count_spare(self._scaling, demand, len(self._live))]:
            logger.info("%s has nothing to do and ends", worker.name)
            self._end(worker, now)
        live = self._live
        starting = sum(not worker.joined for worker in live)
        since_s = now - self._started_at
        missing = count_missing(self._scaling, demand, len(live), starting, since_s)
        missing = min(max(missing, self._replacing), self._scaling.max_workers - len(live))
        if missing > 0 and now >= self._not_before:
            self._replacing = 0
            for _ in range(missing):
                await self._begin(now)

    async def _demand(self) -> Demand:
        stats = await self._store.stats(self._endpoint)
        running = stats.counts.get(JobStatus.IN_PROGRESS, 0)
        if self._local is not None:
            running -= len(self._store.list_leased_jobs(self._local))
        oldest = stats.oldest_queued_at
        return Demand(
            queued=stats.counts.get(JobStatus.IN_QUEUE, 0),
            running=max(0, running),
            waited_s=0.0 if oldest is None else max(0.0, self._wall() - oldest),
        )

    async def _begin(self, now: float) -> None:
        self._number += 1
        name = f"{_PREFIX}{self._series}-{self._number}"
        self._started_at = now
        environment = worker_environment(
            self._url,
            self._endpoint,
            name,
            self._api_key,
            self._own_key,
            allows_private_targets=self._allows_private_targets,
        )
        try:
            process = await self._spawn(name, self._command, environment)
        except OSError as error:
            self._failed(now, f"{name} could not be started: {error}")
            return
        self._workers[name] = ManagedWorker(name, process, now)
        logger.info("%s starts", name)

    def _end(self, worker: ManagedWorker, now: float) -> None:
        worker.ending_at = now
        worker.process.terminate()

    async def _ended(self, worker: ManagedWorker, code: int, now: float) -> None:
        del self._workers[worker.name]
        self._fleet.left(self._endpoint, worker.name)
        await self._store.reclaim_jobs(worker_key(self._endpoint, worker.name), "its worker ended")
        if worker.ending_at is not None:
            logger.info("%s has ended", worker.name)
            return
        if worker.joined and now - worker.started_at > _SOUND_S:
            self._crashes = 0
        # What the worker has reported itself says more than the last line that it wrote.
        has_reported = worker.name in self._fleet.unhealthy(self._endpoint)
        if code and not worker.joined and not has_reported:
            self._fleet.show_unhealthy(self._endpoint, worker.name, worker.process.last_line)
        self._failed(now, f"{worker.name} ended by itself, with code {code}")

    def _failed(self, now: float, what: str) -> None:
        pause_s = min(_FIRST_BACKOFF_S * 2**self._crashes, _MOST_BACKOFF_S)
        # Beyond that it only has to stay beyond it.
        self._crashes = min(self._crashes + 1, 10)
        self._not_before = now + pause_s
        logger.error("%s; the next one starts in %g s at the earliest", what, pause_s)

    async def drain(self, limit_s: float) -> None:
        """Start no more workers, have all finish what they run, and kill what is left then.

        What a killed one had waits again, and has lost no worker by it.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._workers:
            return
        for worker in self._live:
            self._end(worker, self._now())
        ends = {asyncio.ensure_future(each.process.wait()) for each in self._workers.values()}
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while any(not end.done() for end in ends) and loop.time() < began + limit_s:
                await asyncio.wait(ends, timeout=min(_TICK_S, limit_s))
                if loop.time() > began + _FAREWELL_S:
                    # Told to wait, as all are now, the SDK sleeps for seconds before it looks up.
                    self._kill(lambda worker: not self._held(worker))
        finally:
            self._kill(lambda worker: True)
        await asyncio.wait(ends)
        for worker in self._workers.values():
            for job in self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)):
                await self._store.nack(job.id, job.attempt)
        self._workers.clear()

    def _kill(self, which: Callable[[ManagedWorker], bool]) -> None:
        for worker in self._workers.values():
            if worker.process.returncode is None and which(worker):
                worker.process.kill()


def is_managed(key: str) -> bool:
    """Tell whether a worker's key is one of a launcher's: such a worker ends with its server."""
    return worker_name(key).startswith(_PREFIX)
