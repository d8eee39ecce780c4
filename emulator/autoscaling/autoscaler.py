"""Start SDK workers as processes of this server when jobs wait, and stop them when none do."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from emulator.autoscaling.code_generations import CodeGenerations
from emulator.autoscaling.containers.worker_image import WorkerImage
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.autoscaling.scaler import Scaler
from emulator.autoscaling.start_backoff import StartBackoff
from emulator.autoscaling.start_failure import StartFailure, build_start_failure, fail_queued_jobs
from emulator.autoscaling.start_watch import describe_long_start
from emulator.autoscaling.unhealthy_workers import UnhealthyWorkers
from emulator.autoscaling.worker_exits import WorkerExits
from emulator.autoscaling.worker_starter import WorkerNotStarted, WorkerStarter
from emulator.autoscaling.worker_watch import MAX_LAST_LINES, WorkerWatch
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.limits import ScalingPolicy
from jobs import JobStore

logger = logging.getLogger(__name__)

_TICK_S = 0.25
# Of a failed build, in the log; `/health` has more.
_MAX_BUILD_LINES = 20
# How long a worker without jobs may take to exit during a shutdown, when no jobs are leased.
_SHUTDOWN_EXIT_TIMEOUT_S = 0.5


class Autoscaler:
    """Runs as many workers of an endpoint as the scaling policy requires.

    Its parts decide, and each tick does what they say: `Scaler` how many workers are wanted,
    `StartBackoff` when the next may start, `CodeGenerations` which of them run the newest code,
    `WorkerWatch` which do not work, and `WorkerExits` what the end of one means.

    If no worker of a user's handler starts, the jobs that wait are answered with the reason.

    Owned by the event loop, as all its parts are: one task ticks, and requests only read the state
    or call `reload`.
    """

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        endpoint: str,
        policy: ScalingPolicy,
        starter: WorkerStarter,
        *,
        requeues_on_reload: bool = False,
        ends_old_first: bool = False,
        local: str | None = None,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._starter = starter
        self._now = now
        self._url = ""
        self._workers = ManagedWorkers(store, worker_registry, endpoint)
        self._scaler = Scaler(store, endpoint, policy, local, wall_clock)
        self._backoff = StartBackoff()
        self._generations = CodeGenerations(
            self._workers, requeues_on_reload=requeues_on_reload, ends_old_first=ends_old_first
        )
        # Why the newest code has no image; the workers run the image before it meanwhile.
        self._build_failure: StartFailure | None = None
        self._unhealthy = UnhealthyWorkers(worker_registry, endpoint)
        self._watch = WorkerWatch(self._workers, self._unhealthy, self._replace)
        self._exits = WorkerExits(
            store,
            worker_registry,
            endpoint,
            self._workers,
            self._unhealthy,
            self._backoff,
            self._generations,
        )
        self._last_tick_at = now()
        # Set to begin the next tick at once.
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint whose workers this manages."""
        return self._endpoint

    @property
    def policy(self) -> ScalingPolicy:
        """The settings by which it starts and stops workers."""
        return self._scaler.policy

    @property
    def generation(self) -> int:
        """Which state of the code new workers run; each reload starts another one."""
        return self._generations.newest

    @property
    def workers(self) -> Sequence[ManagedWorker]:
        """The workers whose process runs, or has just ended."""
        return list(self._workers)

    @property
    def python(self) -> str:
        """The Python of the handler, the engine of an image, or the first word of a command."""
        program = self._starter.program
        if program.image is not None:
            return str(program.image.engine)
        return program.command[0] if program.python is None else program.python.path

    @property
    def command_line(self) -> str:
        """The image of a worker, or the command that starts one, quoted for a shell."""
        if (image := self._starter.program.image) is not None:
            return image.reference
        return shlex.join(self._starter.program.command)

    @property
    def failed_starts(self) -> int:
        """How many workers in a row ended before they asked for a job."""
        return self._backoff.failed_starts

    @property
    def failure(self) -> StartFailure | None:
        """Why the newest code of the user's handler did not start; None if it runs or starts."""
        if self._build_failure is not None:
            return self._build_failure
        return None if self._generations.runs_newest else self._generations.failure

    @property
    def handler_state(self) -> Literal["starting", "ready", "idle", "failed", "outdated"]:
        """The state of the user's handler.

        `outdated`: older code runs, for the newest failed. `idle`: no worker runs, and need not
        before there is a job.
        """
        if self._build_failure is not None:
            return "outdated"
        if self._generations.runs_newest:
            return "ready"
        if self._generations.failure is None:
            may_rest = self.policy.min_workers == 0 and not self._backoff.has_crashes
            return "idle" if may_rest and not self._workers.active else "starting"
        return "outdated" if any(map(self._workers.has_joined, self._workers.active)) else "failed"

    def uptime_s(self, worker: ManagedWorker) -> float:
        """Return how long ago a worker was started."""
        return self._now() - worker.started_at

    def explain_wait(self) -> str | None:
        """Return what a job that waits here waits for; None if for a worker that is busy."""
        now = self._now()
        for worker in self._workers.active:
            if not self._workers.has_joined(worker):
                output = worker.log.last_printed(MAX_LAST_LINES)
                return f"{worker.name} {describe_long_start(output, now - worker.started_at)}"
        if self._generations.must_wait_for_end:
            names = ", ".join(each.name for each in self._workers.ending)
            return f"the next worker starts when {names} has ended"
        if wait_s := self._backoff.remaining_s(now):
            return f"the next worker starts in {wait_s:.0f} s: {self._backoff.reason}"
        return None

    def start(self, url: str) -> None:
        """Start scaling; the server must be reachable at `url`."""
        if self.policy.max_workers > 0:
            self._worker_registry.set_explain_wait(self._endpoint, self.explain_wait)
            self._url = url
            self._task = asyncio.create_task(self._run())

    def retry_start(self) -> None:
        """Start the newest code again if it has failed: a package that it lacks may be there."""
        if self._generations.failure is not None:
            logger.info("packages were installed: a new worker of %s starts", self._endpoint)
            self.reload()

    def use_image(self, image: WorkerImage) -> None:
        """Replace all workers by containers of an image that was built again."""
        self._starter.program = replace(self._starter.program, image=image)
        self._build_failure = None
        self.reload()

    def record_failed_build(self, reason: str, output: str) -> None:
        """Keep that the newest code was not built, and why; the workers with older code go on.

        `reason` is a predicate, and `output` what the builder printed.
        """
        name = self._starter.program.name or self._endpoint
        self._build_failure = build_start_failure("", name, reason, output.splitlines())
        for line in [f"{name} {reason}", *output.splitlines()[-_MAX_BUILD_LINES:]]:
            logger.error("%s", line)

    def reload(self) -> None:
        """Replace all workers, because their code has changed; the next tick begins at once."""
        self._generations.begin_next()
        self._backoff.reset()
        self._unhealthy.clear(self._workers)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self.tick()
            except Exception:
                logger.exception("the workers could not be updated")
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def tick(self) -> None:
        """Update the state of the workers, then stop or start some."""
        now = self._now()
        # A server that was stopped for a while learns what its workers did only now.
        passed_s = min(now - self._last_tick_at, 1.0)
        self._last_tick_at = now
        registered = {
            worker.name: worker for worker in self._worker_registry.workers(self._endpoint)
        }
        for worker in self._workers:
            await self._update(worker, registered.get(worker.name), passed_s, now)
        await self._generations.replace_outdated(registered, now)
        await self._scale(now)
        await self._fail_queued_jobs()
        starting = sum(not worker.joined for worker in self._workers.active)
        self._worker_registry.set_initializing(self._endpoint, starting)

    async def _update(
        self,
        worker: ManagedWorker,
        registration: RemoteWorker | None,
        passed_s: float,
        now: float,
    ) -> None:
        """Notice that a worker has asked for a job, got one, ended or does not work."""
        if registration is not None and not worker.joined:
            self._handle_join(worker, now)
        if registration is not None and registration.has_taken_jobs:
            worker.has_taken_jobs = True
        if (code := worker.process.returncode) is not None:
            await self._exits.handle(worker, code, self._starter.program, now)
        else:
            self._watch.check(worker, registration, passed_s, now)

    def _handle_join(self, worker: ManagedWorker, now: float) -> None:
        worker.joined, worker.busy_at = True, now
        self._backoff.failed_starts = 0
        worker.log.append("system", f"{worker.name} asked for its first job")
        self._unhealthy.clear_replaced(worker)
        self._generations.record_join(worker)

    async def _scale(self, now: float) -> None:
        has_outdated = bool(self._generations.outdated)
        if has_outdated and self._generations.failure is not None:
            # The newest code does not start, and the workers with older code go on.
            return
        demand = await self._scaler.measure_demand()
        for worker in self._scaler.pick_spare(self._generations.current, demand, now):
            worker.note("has nothing to do and ends")
            self._terminate(worker, now)
        current = self._generations.current
        at_least = 1 if has_outdated and not current else 0
        missing = self._scaler.count_missing(current, demand, now, at_least)
        if self._backoff.remaining_s(now) or self._generations.must_wait_for_end:
            return
        for _ in range(missing):
            await self._start_worker(now)

    async def _start_worker(self, now: float) -> None:
        self._scaler.record_start(now)
        try:
            worker = await self._starter.start(
                self._url, now, self._generations.newest, self._workers.find_only_job
            )
        except WorkerNotStarted as error:
            if (name := self._starter.program.name) is not None:
                failure = build_start_failure(error.worker, name, error.reason, [])
                self._generations.failure = failure
            self._backoff.record_fault(now, str(error))
            return
        worker.replaces = self._unhealthy.take_name()
        self._workers.add(worker)

    async def _fail_queued_jobs(self) -> None:
        """End the jobs that wait if the code has failed and no worker could take them."""
        failure = self._generations.failure
        if failure is not None and not self._worker_registry.workers(self._endpoint):
            await fail_queued_jobs(self._store, self._endpoint, failure)

    def _replace(self, worker: ManagedWorker, now: float) -> None:
        self._terminate(worker, now)
        self._scaler.request_replacement()

    def _terminate(self, worker: ManagedWorker, now: float) -> None:
        self._workers.terminate(worker, now, self._generations.exit_timeout_s)

    async def drain(self, limit_s: float) -> None:
        """Stop starting workers, wait up to `limit_s` until all have exited, and kill the rest.

        The jobs of a killed worker go back to the queue; that does not count as a lost attempt.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._workers:
            return
        for worker in self._workers.active:
            self._terminate(worker, self._now())
        exits = {asyncio.ensure_future(each.process.wait()) for each in self._workers}
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            while any(not end.done() for end in exits) and loop.time() < started_at + limit_s:
                await asyncio.wait(exits, timeout=min(_TICK_S, limit_s))
                if loop.time() > started_at + _SHUTDOWN_EXIT_TIMEOUT_S:
                    # During a shutdown the server answers job requests with 429, after which the
                    # SDK sleeps for seconds before it handles the SIGTERM.
                    self._workers.kill(lambda worker: not self._workers.has_jobs(worker))
        finally:
            self._workers.kill(lambda worker: True)
        await asyncio.wait(exits)
        for worker in self._workers:
            await self._workers.requeue_jobs(worker)
            worker.close_log()
            self._workers.remove(worker)
