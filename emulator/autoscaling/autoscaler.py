"""Start SDK workers as processes of this server when jobs wait, and stop them when none do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.missing_module import explain_missing_module
from emulator.autoscaling.policy import Demand, count_missing, count_spare
from emulator.autoscaling.start_failure import (
    StartFailure,
    build_start_failure,
    fail_queued_jobs,
    is_fault_of_code,
)
from emulator.autoscaling.start_watch import (
    NAMED_AFTER_S,
    START_TIMEOUT_VARIABLE,
    describe_long_start,
    explain_no_worker,
    parse_start_timeout,
    serves_http,
)
from emulator.autoscaling.worker_exit import (
    KILLED,
    describe_worker_exit,
    explain_failed_start,
    explain_worker_exit,
)
from emulator.autoscaling.worker_log import WorkerLogs
from emulator.autoscaling.worker_process import Spawn, spawn_supervised, worker_environment
from emulator.autoscaling.worker_program import WorkerProgram, command_program
from emulator.bucket.service import Bucket
from emulator.runpod.job_response import MANAGED_PREFIX, worker_key
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.limits import ScalingPolicy
from jobs import JobStatus, JobStore

logger = logging.getLogger(__name__)

_TICK_S = 0.25
# Time for a worker without jobs to exit after SIGTERM; its long polls end within a few seconds.
_EXIT_TIMEOUT_S = 15.0
# The limit during a shutdown, when no more jobs are leased.
_SHUTDOWN_EXIT_TIMEOUT_S = 0.5
# How long the last lines of a worker that has ended are waited for.
_OUTPUT_TIMEOUT_S = 1.0
# As many as a long traceback has.
_MAX_LAST_LINES = 60
# The same where the next worker waits for its end.
_REPLACED_EXIT_TIMEOUT_S = 3.0
# A worker that lives and has no job asks for one again within seconds.
_MAX_SILENT_S = 30.0
_MAX_FAILED_STARTS = 3
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0
# A worker that has run for this long resets the backoff when it ends.
_BACKOFF_RESET_S = 30.0


class Autoscaler:
    """Runs as many workers as the scaling policy requires; owned by the event loop.

    A reload starts a worker with the changed code. Until it asks for a job, the workers with the
    older code get no more jobs; then they end. If it does not start, they go on, unless they may
    be the cause: a port or a GPU that they still hold. Then they end, and it is started once more.
    With `ends_old_first` no worker starts while one ends, and a reload ends the old ones first.

    If no worker of a user's handler starts, the jobs that wait are answered with the reason.

    If this is not the server's only autoscaler, the names of its workers contain the endpoint.
    """

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        endpoint: str,
        policy: ScalingPolicy,
        *,
        program: WorkerProgram | None = None,
        logs: WorkerLogs | None = None,
        requeues_on_reload: bool = False,
        ends_old_first: bool = False,
        api_key: str | None = None,
        own_key: str | None = None,
        allows_private_targets: bool = True,
        bucket: Bucket | None = None,
        local: str | None = None,
        is_only_one: bool = True,
        spawn: Spawn | None = None,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._policy = policy
        self._program = program or command_program("")
        self._logs = logs or WorkerLogs()
        self._requeues_on_reload = requeues_on_reload
        self._ends_old_first = ends_old_first
        # Whether the newest code failed beside older workers, and is tried again without them.
        self._starts_alone = False
        self._api_key = api_key
        self._own_key = own_key
        self._allows_private_targets = allows_private_targets
        self._bucket = bucket
        self._local = worker_key(endpoint, local) if local is not None else None
        self._spawn: Spawn = spawn or spawn_supervised
        self._now = now
        self._wall_clock = wall_clock
        self._url = ""
        self._workers: dict[str, ManagedWorker] = {}
        # Part of each name, so that no worker has the name of one before a restart of the server,
        # which may still have leases. The log has the lines of all workers, by their names.
        token = secrets.token_hex(3)
        self._series = token if is_only_one else f"{endpoint}-{token}"
        self._last_number = 0
        self._last_start_at = -float("inf")
        self._consecutive_crashes = 0
        # How many workers in a row ended before they asked for a job.
        self.failed_starts = 0
        self._no_start_before = -float("inf")
        # Why the next start has to wait, as a sentence about the last worker.
        self._last_fault = ""
        self._last_tick_at = now()
        # How many workers have requested to be replaced.
        self._replacements = 0
        self._generation = 1
        # The newest state of the code of which a worker has asked for a job.
        self._started_generation = 0
        # Why the newest code of a user's handler did not start; None if it did, or has not ended.
        self._failure: StartFailure | None = None
        # The names of the workers that crashed or did not start and have no successor yet.
        self._unhealthy_names: list[str] = []
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
        return self._policy

    @property
    def generation(self) -> int:
        """Which state of the code new workers run; each reload starts another one."""
        return self._generation

    @property
    def workers(self) -> Sequence[ManagedWorker]:
        """The workers whose process runs, or has just ended."""
        return list(self._workers.values())

    @property
    def python(self) -> str:
        """The Python of the handler, or the first word of another command."""
        program = self._program
        return program.command[0] if program.python is None else program.python.path

    @property
    def command_line(self) -> str:
        """The command that starts a worker, quoted for a shell."""
        return shlex.join(self._program.command)

    def uptime_s(self, worker: ManagedWorker) -> float:
        """Return how long ago a worker was started."""
        return self._now() - worker.started_at

    def start(self, url: str) -> None:
        """Start scaling; the server must be reachable at `url`."""
        if self._policy.max_workers > 0:
            self._worker_registry.set_explain_wait(self._endpoint, self.explain_wait)
            self._url = url
            self._task = asyncio.create_task(self._run())

    @property
    def failure(self) -> StartFailure | None:
        """Why the newest code of the user's handler did not start; None if it runs or starts."""
        return None if self._runs_newest_code else self._failure

    @property
    def handler_state(self) -> Literal["starting", "ready", "idle", "failed", "outdated"]:
        """The state of the user's handler.

        `outdated`: older code runs, for the newest failed. `idle`: no worker runs, and need not
        before there is a job.
        """
        if self._runs_newest_code:
            return "ready"
        if self._failure is None:
            may_rest = self._policy.min_workers == 0 and not self._consecutive_crashes
            return "idle" if may_rest and not self._workers else "starting"
        return "outdated" if any(map(self._has_joined, self._active)) else "failed"

    @property
    def _runs_newest_code(self) -> bool:
        return any(
            worker.generation == self._generation and self._has_joined(worker)
            for worker in self._active
        )

    def _has_joined(self, worker: ManagedWorker) -> bool:
        """Return whether a worker has asked for a job, even if no tick has noticed it yet."""
        return worker.joined or self._worker_registry.is_registered(self._endpoint, worker.name)

    def retry_start(self) -> None:
        """Start the newest code again if it has failed: a package that it lacks may be there."""
        if self._failure is not None:
            logger.info("packages were installed: a new worker of %s starts", self._endpoint)
            self.reload()

    def reload(self) -> None:
        """Replace all workers, because their code has changed; the next tick begins at once."""
        self._generation += 1
        self._failure = None
        self.failed_starts = 0
        self._consecutive_crashes = 0
        self._no_start_before = -float("inf")
        self._starts_alone = False
        self._forget_failures()
        self._wake.set()

    def explain_wait(self) -> str | None:
        """Return what a job that waits here waits for; None if for a worker that is busy."""
        now = self._now()
        for worker in self._active:
            if not self._has_joined(worker):
                output = worker.log.last_printed(_MAX_LAST_LINES)
                return f"{worker.name} {describe_long_start(output, now - worker.started_at)}"
        if self._must_wait_for_end:
            names = ", ".join(each.name for each in self._workers.values() if each.ending_at)
            return f"the next worker starts when {names} has ended"
        if now < self._no_start_before:
            wait_s = self._no_start_before - now
            return f"the next worker starts in {wait_s:.0f} s: {self._last_fault}"
        return None

    def _forget_failures(self) -> None:
        for name in self._unhealthy_names:
            self._worker_registry.clear_unhealthy(self._endpoint, name)
        for worker in self._workers.values():
            if worker.replaces is not None:
                self._worker_registry.clear_unhealthy(self._endpoint, worker.replaces)
                worker.replaces = None
        self._unhealthy_names.clear()

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
        for worker in list(self._workers.values()):
            registration = registered.get(worker.name)
            if registration is not None and not worker.joined:
                self._handle_join(worker, now)
            if registration is not None and registration.has_taken_jobs:
                worker.has_taken_jobs = True
            if worker.process.returncode is not None:
                await self._handle_exit(worker, worker.process.returncode, now)
                continue
            if self._has_jobs(worker):
                worker.busy_at = now
            if worker.ending_at is not None:
                is_late = now - worker.ending_at > worker.exit_timeout_s
                if is_late and not self._has_jobs(worker):
                    worker.process.kill()
            elif not worker.joined:
                self._watch_start(worker, now)
            elif registration is not None and (
                why := registration.find_unstopped_job(time.monotonic())
            ):
                worker.note(f"still runs a job that {why}, and is stopped", logging.WARNING)
                self._replace(worker, now)
                if not self._has_jobs(worker):
                    # Its handler blocks the SDK, which could not handle a SIGTERM.
                    worker.process.kill()
            elif registration is not None and registration.requests_replacement:
                worker.note("asked to be replaced")
                self._replace(worker, now)
            else:
                self._watch_silence(worker, registration, passed_s, now)
        await self._replace_outdated(registered, now)
        await self._scale(now)
        if self._failure is not None and not self._worker_registry.workers(self._endpoint):
            await fail_queued_jobs(self._store, self._endpoint, self._failure)
        starting = sum(not worker.joined for worker in self._active)
        self._worker_registry.set_initializing(self._endpoint, starting)

    def _watch_start(self, worker: ManagedWorker, now: float) -> None:
        """Name a worker that takes long to ask for its first job; kill it if it never will."""
        if worker.never_starts is not None:
            return
        age_s = now - worker.started_at
        output = worker.log.last_printed(_MAX_LAST_LINES)
        worker.never_starts = explain_no_worker(output)
        if age_s > worker.start_timeout_s:
            worker.never_starts = (
                f"was killed because it did not ask for a job within {worker.start_timeout_s:g} s "
                f"({START_TIMEOUT_VARIABLE})"
            )
        if worker.never_starts is not None:
            worker.note(worker.never_starts, logging.ERROR)
            worker.process.kill()
        elif age_s >= NAMED_AFTER_S and worker.long_start is None:
            worker.long_start = describe_long_start(output, age_s)
            worker.note(worker.long_start, logging.WARNING)
            if serves_http(output):
                reason = f"it {worker.long_start}"
                self._worker_registry.mark_unhealthy(self._endpoint, worker.name, reason)

    def _watch_silence(
        self,
        worker: ManagedWorker,
        registration: RemoteWorker | None,
        passed_s: float,
        now: float,
    ) -> None:
        """Replace a worker that has no job and does not ask for one any more."""
        asks = registration is not None and not registration.is_shutting_down(time.monotonic())
        worker.silent_s = 0.0 if asks or self._has_jobs(worker) else worker.silent_s + passed_s
        if worker.silent_s <= _MAX_SILENT_S:
            return
        reason = f"has no job and has not asked for one in {_MAX_SILENT_S:g} s"
        worker.note(f"{reason}, and is replaced", logging.WARNING)
        self._worker_registry.mark_unhealthy(self._endpoint, worker.name, f"it {reason}")
        self._unhealthy_names.append(worker.name)
        self._replace(worker, now)
        worker.process.kill()

    @property
    def _must_wait_for_end(self) -> bool:
        """Whether the next start has to wait until a worker that ends has ended."""
        waits = self._ends_old_first or self._starts_alone
        return waits and any(worker.ending_at is not None for worker in self._workers.values())

    @property
    def _active(self) -> list[ManagedWorker]:
        return [worker for worker in self._workers.values() if worker.ending_at is None]

    @property
    def _outdated(self) -> list[ManagedWorker]:
        return [worker for worker in self._active if worker.generation != self._generation]

    async def _replace_outdated(self, registered: Mapping[str, RemoteWorker], now: float) -> None:
        """Pause the workers with older code until the newest has started or failed.

        If it has started, they end; if not, those with the newest code that works are resumed. A
        worker with older code that has not asked for a job yet never will. Where the old ones end
        first, they end at once.
        """
        ends_first = self._ends_old_first or self._starts_alone
        newest = max((each.generation for each in self._active if each.joined), default=0)
        for worker in self._outdated:
            registration = registered.get(worker.name)
            if worker.generation < newest or (ends_first and worker.joined):
                self._terminate(worker, now)
                if self._requeues_on_reload:
                    worker.process.kill()
                    await self._requeue_jobs(worker)
            elif not worker.joined:
                worker.ending_at = now
                worker.process.kill()
            elif registration is not None and self._failure is None:
                registration.pause()
            elif registration is not None:
                registration.resume()

    async def _requeue_jobs(self, worker: ManagedWorker) -> None:
        """Return a worker's jobs to the queue; that does not count as a lost attempt."""
        for job in self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)):
            await self._store.nack(job.id, job.attempt)

    def _find_only_job(self, name: str) -> str | None:
        """Return the job that a worker runs; None if it runs none or several."""
        jobs = self._store.list_leased_jobs(worker_key(self._endpoint, name))
        return jobs[0].id if len(jobs) == 1 else None

    def _has_jobs(self, worker: ManagedWorker) -> bool:
        return bool(self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)))

    async def _scale(self, now: float) -> None:
        outdated = self._outdated
        if outdated and self._failure is not None:
            # The newest code does not start, and the workers with older code go on.
            return
        demand = await self._demand()
        live = [worker for worker in self._active if worker.generation == self._generation]
        idle = [
            worker
            for worker in live
            if worker.joined and now - worker.busy_at >= self._policy.idle_timeout_s
        ]
        idle.sort(key=lambda worker: worker.busy_at)
        for worker in idle[: count_spare(self._policy, demand, len(live))]:
            worker.note("has nothing to do and ends")
            self._terminate(worker, now)
        live = [worker for worker in live if worker.ending_at is None]
        starting = sum(not worker.joined for worker in live)
        since_last_start_s = now - self._last_start_at
        missing = count_missing(self._policy, demand, len(live), starting, since_last_start_s)
        if outdated and not live:
            missing = max(missing, 1)
        missing = min(max(missing, self._replacements), self._policy.max_workers - len(live))
        if missing > 0 and now >= self._no_start_before and not self._must_wait_for_end:
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
        name = f"{MANAGED_PREFIX}{self._series}-{self._last_number}"
        self._last_start_at = now
        self._find_python()
        log = self._logs.open(self._endpoint, name, partial(self._find_only_job, name))
        bucket: Mapping[str, str] = {}
        try:
            variables = self._program.variables()
            if self._bucket is not None:
                bucket = self._bucket.worker_variables(self._url, variables)
            environment = worker_environment(
                self._url,
                self._endpoint,
                name,
                self._api_key,
                self._own_key,
                allows_private_targets=self._allows_private_targets,
                variables={**variables, **bucket},
                python=None if self._program.python is None else self._program.python.path,
                is_own_worker=self._program.is_own_worker,
            )
            process = await self._spawn(
                name, self._program.command, environment, self._program.folder, log
            )
        # ValueError: a .env that is not text, or a variable in it that no process can have.
        except (OSError, ValueError) as error:
            reason = f"could not be started: {error}"
            log.append("system", f"{name} {reason}")
            log.close()
            if self._program.file is not None:
                self._failure = build_start_failure(name, self._program.file, reason, [])
            self._back_off(now, f"{name} {reason}")
            return
        replaces = self._unhealthy_names.pop(0) if self._unhealthy_names else None
        start_timeout_s = parse_start_timeout(environment.get(START_TIMEOUT_VARIABLE))
        worker = ManagedWorker(name, process, log, now, self._generation, start_timeout_s, replaces)
        self._workers[name] = worker
        worker.note("starts")
        if bucket:
            log.append("system", "it uploads to the bucket of this server: no BUCKET_* is set")

    def _find_python(self) -> None:
        program = self._program.with_current_python()
        if program.python != self._program.python:
            logger.info("the handler runs with %s now", program.python)
        self._program = program

    def _terminate(self, worker: ManagedWorker, now: float) -> None:
        """Let a worker end after its jobs. A script may not pass the signal on, so it gets none."""
        ends_first = self._ends_old_first or self._starts_alone
        worker.ending_at = now
        worker.exit_timeout_s = _REPLACED_EXIT_TIMEOUT_S if ends_first else _EXIT_TIMEOUT_S
        if self._worker_registry.is_registered(self._endpoint, worker.name):
            self._worker_registry.get_or_register(self._endpoint, worker.name).pause()
        worker.process.terminate()

    def _replace(self, worker: ManagedWorker, now: float) -> None:
        self._terminate(worker, now)
        self._replacements += 1

    def _handle_join(self, worker: ManagedWorker, now: float) -> None:
        worker.joined, worker.busy_at = True, now
        self.failed_starts = 0
        self._started_generation = max(self._started_generation, worker.generation)
        worker.log.append("system", f"{worker.name} asked for its first job")
        if worker.replaces is not None:
            self._worker_registry.clear_unhealthy(self._endpoint, worker.replaces)
            worker.replaces = None
        if worker.generation == self._generation:
            self._failure = None

    async def _handle_exit(self, worker: ManagedWorker, code: int, now: float) -> None:
        del self._workers[worker.name]
        worker.process.kill_orphans()
        self._worker_registry.forget_worker(self._endpoint, worker.name)
        # A process that the worker has detached can keep its output open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_TIMEOUT_S):
                await worker.process.wait()
        output = worker.log.last_printed(_MAX_LAST_LINES)
        self._close_log(worker)
        reason = explain_worker_exit(code, output)
        await self._store.reclaim_jobs(
            worker_key(self._endpoint, worker.name), f"its worker {reason}"
        )
        if worker.ending_at is not None:
            logger.info("%s has ended", worker.name)
            return
        if worker.joined:
            if now - worker.started_at > _BACKOFF_RESET_S or worker.has_taken_jobs:
                self._consecutive_crashes = 0
            self._mark_unhealthy(worker, code, reason)
            if worker.has_taken_jobs:
                # Its jobs may have ended it. How often each of them may do so is limited.
                logger.error("%s %s; the next one starts", worker.name, reason)
            else:
                self._back_off(now, f"{worker.name} {reason}")
            return
        reason = worker.never_starts or explain_failed_start(code, output)
        if self._program.file is not None and (
            advice := explain_missing_module(output, self._program.file, self._program.python)
        ):
            reason = f"{reason}; {advice}"
        self.failed_starts += 1
        self._mark_unhealthy(worker, code, reason)
        if self._program.file is None:
            self._back_off(now, f"{worker.name} {reason}")
            return
        is_newest = worker.generation == self._generation
        if is_newest and self._outdated and not is_fault_of_code(code, output):
            self._starts_alone = True
            logger.error(
                "%s %s; it is started again when the worker with the code before the change has "
                "ended, because that may still have what it needs",
                worker.name,
                reason,
            )
            return
        failure = build_start_failure(worker.name, self._program.file, reason, output)
        if is_newest and self.failed_starts >= self._starts_to_fail(worker, code):
            self._failure = failure
        message = f"{failure.file} did not start: {failure.reason}"
        if self._outdated:
            logger.error("%s; the worker with the code before the change goes on", message)
        else:
            self._back_off(now, message)

    def _starts_to_fail(self, worker: ManagedWorker, code: int) -> int:
        """Return how many starts in a row must fail until the waiting jobs are failed.

        One, for code that cannot start is the same the next time. More if this code has started
        before, or if the worker was killed, which is rarely its own doing.
        """
        is_other_cause = code == KILLED or worker.generation <= self._started_generation
        return _MAX_FAILED_STARTS if is_other_cause else 1

    def _close_log(self, worker: ManagedWorker) -> None:
        """Write how a worker ended as the last line of its log."""
        if (code := worker.process.returncode) is not None:
            worker.log.append("system", f"{worker.name} {describe_worker_exit(code)}")
        worker.log.close()

    def _mark_unhealthy(self, worker: ManagedWorker, code: int, reason: str) -> None:
        """Show a worker as unhealthy, in the place of the one that it replaced."""
        unhealthy = self._worker_registry.unhealthy_workers(self._endpoint)
        reported = unhealthy.get(worker.name)
        if reported is not None and reported != f"it {worker.long_start}":
            # The worker itself has reported why it ends, which says more than its output.
            reason = f"{describe_worker_exit(code)} after it reported: {reported}"
        if worker.replaces is not None:
            self._worker_registry.clear_unhealthy(self._endpoint, worker.replaces)
        self._worker_registry.mark_unhealthy(self._endpoint, worker.name, f"it {reason}")
        self._unhealthy_names.append(worker.name)

    def _back_off(self, now: float, reason: str) -> None:
        pause_s = min(_FIRST_BACKOFF_S * 2**self._consecutive_crashes, _MAX_BACKOFF_S)
        # More than 10 would not change the pause.
        self._consecutive_crashes = min(self._consecutive_crashes + 1, 10)
        self._no_start_before = now + pause_s
        self._last_fault = reason
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
            await self._requeue_jobs(worker)
            self._close_log(worker)
        self._workers.clear()

    def _kill(self, should_kill: Callable[[ManagedWorker], bool]) -> None:
        for worker in self._workers.values():
            if worker.process.returncode is None and should_kill(worker):
                worker.process.kill()
