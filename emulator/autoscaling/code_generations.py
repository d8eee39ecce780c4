"""The states of a handler's code: which of them works, and which workers still run an older one."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.autoscaling.start_failure import StartFailure
from emulator.autoscaling.worker_exit import KILLED
from emulator.runpod.remote_worker import RemoteWorker

# Time for a worker without jobs to exit after SIGTERM; its long polls end within a few seconds.
_EXIT_TIMEOUT_S = 15.0
# The same where the next worker waits for its end.
_REPLACED_EXIT_TIMEOUT_S = 3.0
_MAX_FAILED_STARTS = 3


class CodeGenerations:
    """Counts the states of the code, and ends the workers with older ones as the newest starts.

    Until a worker with the newest code asks for a job, the workers with older code get no new jobs;
    then they end. If it does not start, they go on, unless they may be the cause: a port or a GPU
    that they still hold. Then they end, and it is started once more (`starts_alone`). With
    `ends_old_first` no worker starts while one ends, and a reload ends the old ones first.

    Owned by the event loop; the autoscaler and its `WorkerExits` call it.
    """

    def __init__(
        self, workers: ManagedWorkers, *, requeues_on_reload: bool, ends_old_first: bool
    ) -> None:
        self._workers = workers
        self._requeues_on_reload = requeues_on_reload
        self._ends_old_first = ends_old_first
        # The state of the code that new workers run.
        self.newest = 1
        # Why the newest code of a user's handler did not start; None if it did, or has not ended.
        self.failure: StartFailure | None = None
        # Whether the newest code failed while older workers ran, and is tried again without them.
        self.starts_alone = False
        # The newest state of the code of which a worker has asked for a job.
        self._last_started = 0

    def begin_next(self) -> None:
        """Count a change of the code."""
        self.newest += 1
        self.failure = None
        self.starts_alone = False

    def is_newest(self, worker: ManagedWorker) -> bool:
        """Return whether a worker runs the newest code."""
        return worker.generation == self.newest

    @property
    def current(self) -> list[ManagedWorker]:
        """The active workers with the newest code."""
        return [worker for worker in self._workers.active if self.is_newest(worker)]

    @property
    def outdated(self) -> list[ManagedWorker]:
        """The active workers with older code."""
        return [worker for worker in self._workers.active if not self.is_newest(worker)]

    @property
    def runs_newest(self) -> bool:
        """Whether a worker with the newest code has asked for a job."""
        return any(map(self._workers.has_joined, self.current))

    @property
    def exit_timeout_s(self) -> float:
        """How long a worker without jobs may run after SIGTERM."""
        return _REPLACED_EXIT_TIMEOUT_S if self._ends_first else _EXIT_TIMEOUT_S

    @property
    def must_wait_for_end(self) -> bool:
        """Whether the next start has to wait until a worker that ends has ended."""
        return self._ends_first and bool(self._workers.ending)

    @property
    def _ends_first(self) -> bool:
        return self._ends_old_first or self.starts_alone

    def record_join(self, worker: ManagedWorker) -> None:
        """Note that the code of a worker has started."""
        self._last_started = max(self._last_started, worker.generation)
        if self.is_newest(worker):
            self.failure = None

    def record_failed_start(
        self, worker: ManagedWorker, code: int, failed_starts: int, failure: StartFailure
    ) -> None:
        """Keep the failure of the newest code if so many starts in a row prove it.

        One does, for code that cannot start is the same the next time. Three do if this code has
        started before, or if the worker was killed, which is rarely its own doing.
        """
        is_other_cause = code == KILLED or worker.generation <= self._last_started
        needed = _MAX_FAILED_STARTS if is_other_cause else 1
        if self.is_newest(worker) and failed_starts >= needed:
            self.failure = failure

    async def replace_outdated(self, registered: Mapping[str, RemoteWorker], now: float) -> None:
        """Pause the workers with older code until the newest has started or failed.

        If it has started, they end; if not, those with the newest code that works are resumed. A
        worker with older code that has not asked for a job yet never will. Where the old ones end
        first, they end at once.
        """
        newest = max((each.generation for each in self._workers.active if each.joined), default=0)
        for worker in self.outdated:
            registration = registered.get(worker.name)
            if worker.generation < newest or (self._ends_first and worker.joined):
                await self._end(worker, now)
            elif not worker.joined:
                worker.ending_at = now
                worker.process.kill()
            elif registration is not None and self.failure is None:
                registration.pause()
            elif registration is not None:
                registration.resume()

    async def _end(self, worker: ManagedWorker, now: float) -> None:
        self._workers.terminate(worker, now, self.exit_timeout_s)
        if self._requeues_on_reload:
            worker.process.kill()
            await self._workers.requeue_jobs(worker)
