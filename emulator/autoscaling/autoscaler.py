"""Start SDK workers as processes of this server when jobs wait, and stop them when none do."""

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
    parse_worker_command,
    spawn_supervised,
    worker_environment,
)
from emulator.config import ScalingPolicy
from emulator.runpod.job_response import worker_key, worker_name
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import JobStatus, JobStore

logger = logging.getLogger(__name__)

# The prefix of managed workers' ids.
_PREFIX = "launched-"
_TICK_S = 0.25
# Time for a worker without jobs to exit after SIGTERM; its long polls end within a few seconds.
_EXIT_TIMEOUT_S = 15.0
# The limit during a shutdown, when no more jobs are leased.
_SHUTDOWN_EXIT_TIMEOUT_S = 0.5
# RunPod gives a worker seven minutes to start and load its model.
_JOIN_TIMEOUT_S = 420.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0
# A worker that has run for this long resets the backoff when it ends.
_BACKOFF_RESET_S = 30.0


class ManagedWorker:
    """One worker process of the autoscaler, which owns it. Times are of the monotonic clock."""

    __slots__ = ("busy_at", "ending_at", "joined", "name", "process", "started_at")

    def __init__(self, name: str, process: Process, now: float) -> None:
        self.name = name
        self.process = process
        self.started_at = now
        # When it last had a job, or requested its first one.
        self.busy_at = now
        # Whether it has requested a job.
        self.joined = False
        # When it was sent SIGTERM.
        self.ending_at: float | None = None


class Autoscaler:
    """Runs as many workers as the scaling policy requires; owned by the event loop."""

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        endpoint: str,
        policy: ScalingPolicy,
        *,
        command: str = "",
        api_key: str | None = None,
        own_key: str | None = None,
        allows_private_targets: bool = True,
        local: str | None = None,
        spawn: Spawn | None = None,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._policy = policy
        self._command = parse_worker_command(command)
        self._api_key = api_key
        self._own_key = own_key
        self._allows_private_targets = allows_private_targets
        self._local = worker_key(endpoint, local) if local is not None else None
        self._spawn: Spawn = spawn or spawn_supervised
        self._now = now
        self._wall_clock = wall_clock
        self._url = ""
        self._workers: dict[str, ManagedWorker] = {}
        # Part of each name, so that no worker has the name of one before a restart of the server,
        # which may still have leases.
        self._series = secrets.token_hex(3)
        self._last_number = 0
        self._last_start_at = -float("inf")
        self._consecutive_crashes = 0
        self._no_start_before = -float("inf")
        # How many workers have requested to be replaced.
        self._replacements = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, url: str) -> None:
        """Start scaling; the server must be reachable at `url`."""
        if self._policy.max_workers > 0:
            self._url = url
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self.tick()
            except Exception:
                logger.exception("the workers could not be updated")
            await asyncio.sleep(_TICK_S)

    async def tick(self) -> None:
        """Update the state of the workers, then stop or start some."""
        now = self._now()
        registered = {
            worker.name: worker for worker in self._worker_registry.workers(self._endpoint)
        }
        for worker in list(self._workers.values()):
            if worker.process.returncode is not None:
                await self._handle_exit(worker, worker.process.returncode, now)
                continue
            registration = registered.get(worker.name)
            if registration is not None and not worker.joined:
                worker.joined, worker.busy_at = True, now
            if self._has_jobs(worker):
                worker.busy_at = now
            if worker.ending_at is not None:
                if now - worker.ending_at > _EXIT_TIMEOUT_S and not self._has_jobs(worker):
                    worker.process.kill()
            elif registration is not None and registration.requests_replacement:
                logger.info("%s asked to be replaced", worker.name)
                self._terminate(worker, now)
                self._replacements += 1
            elif not worker.joined and now - worker.started_at > _JOIN_TIMEOUT_S:
                logger.error("%s has not asked for a job in %g s", worker.name, _JOIN_TIMEOUT_S)
                worker.process.kill()
        await self._scale(now)
        starting = sum(not worker.joined for worker in self._active)
        self._worker_registry.set_initializing(self._endpoint, starting)

    @property
    def _active(self) -> list[ManagedWorker]:
        return [worker for worker in self._workers.values() if worker.ending_at is None]

    def _has_jobs(self, worker: ManagedWorker) -> bool:
        return bool(self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)))

    async def _scale(self, now: float) -> None:
        demand = await self._demand()
        idle = [
            worker
            for worker in self._active
            if worker.joined and now - worker.busy_at >= self._policy.idle_timeout_s
        ]
        idle.sort(key=lambda worker: worker.busy_at)
        for worker in idle[: count_spare(self._policy, demand, len(self._active))]:
            logger.info("%s has nothing to do and ends", worker.name)
            self._terminate(worker, now)
        live = self._active
        starting = sum(not worker.joined for worker in live)
        since_last_start_s = now - self._last_start_at
        missing = count_missing(self._policy, demand, len(live), starting, since_last_start_s)
        missing = min(max(missing, self._replacements), self._policy.max_workers - len(live))
        if missing > 0 and now >= self._no_start_before:
            self._replacements = 0
            for _ in range(missing):
                await self._start_worker(now)

    async def _demand(self) -> Demand:
        stats = await self._store.stats(self._endpoint)
        running = stats.counts.get(JobStatus.IN_PROGRESS, 0)
        if self._local is not None:
            running -= len(self._store.list_leased_jobs(self._local))
        oldest = stats.oldest_queued_at
        return Demand(
            queued=stats.counts.get(JobStatus.IN_QUEUE, 0),
            running=max(0, running),
            waited_s=0.0 if oldest is None else max(0.0, self._wall_clock() - oldest),
        )

    async def _start_worker(self, now: float) -> None:
        self._last_number += 1
        name = f"{_PREFIX}{self._series}-{self._last_number}"
        self._last_start_at = now
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
            self._back_off(now, f"{name} could not be started: {error}")
            return
        self._workers[name] = ManagedWorker(name, process, now)
        logger.info("%s starts", name)

    def _terminate(self, worker: ManagedWorker, now: float) -> None:
        worker.ending_at = now
        worker.process.terminate()

    async def _handle_exit(self, worker: ManagedWorker, code: int, now: float) -> None:
        del self._workers[worker.name]
        self._worker_registry.forget_worker(self._endpoint, worker.name)
        await self._store.reclaim_jobs(worker_key(self._endpoint, worker.name), "its worker ended")
        if worker.ending_at is not None:
            logger.info("%s has ended", worker.name)
            return
        if worker.joined and now - worker.started_at > _BACKOFF_RESET_S:
            self._consecutive_crashes = 0
        # A reason that the worker has reported itself is better than its last line of output.
        has_reported_reason = worker.name in self._worker_registry.unhealthy_workers(self._endpoint)
        if code and not worker.joined and not has_reported_reason:
            self._worker_registry.mark_unhealthy(
                self._endpoint, worker.name, worker.process.last_line
            )
        self._back_off(now, f"{worker.name} ended by itself, with code {code}")

    def _back_off(self, now: float, reason: str) -> None:
        pause_s = min(_FIRST_BACKOFF_S * 2**self._consecutive_crashes, _MAX_BACKOFF_S)
        # More than 10 would not change the pause.
        self._consecutive_crashes = min(self._consecutive_crashes + 1, 10)
        self._no_start_before = now + pause_s
        logger.error("%s; the next one starts in %g s at the earliest", reason, pause_s)

    async def drain(self, limit_s: float) -> None:
        """Start no more workers, wait up to `limit_s` until all have exited, and kill the rest.

        The jobs of a killed worker go back to the queue; that does not count as a lost attempt.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._workers:
            return
        for worker in self._active:
            self._terminate(worker, self._now())
        exits = {asyncio.ensure_future(each.process.wait()) for each in self._workers.values()}
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            while any(not end.done() for end in exits) and loop.time() < started_at + limit_s:
                await asyncio.wait(exits, timeout=min(_TICK_S, limit_s))
                if loop.time() > started_at + _SHUTDOWN_EXIT_TIMEOUT_S:
                    # During a shutdown the server answers job requests with 429, after which the
                    # SDK sleeps for seconds before it handles the SIGTERM.
                    self._kill(lambda worker: not self._has_jobs(worker))
        finally:
            self._kill(lambda worker: True)
        await asyncio.wait(exits)
        for worker in self._workers.values():
            for job in self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)):
                await self._store.nack(job.id, job.attempt)
        self._workers.clear()

    def _kill(self, should_kill: Callable[[ManagedWorker], bool]) -> None:
        for worker in self._workers.values():
            if worker.process.returncode is None and should_kill(worker):
                worker.process.kill()


def is_managed(key: str) -> bool:
    """Return whether a worker's key is one of a managed worker, which ends with its server."""
    return worker_name(key).startswith(_PREFIX)
