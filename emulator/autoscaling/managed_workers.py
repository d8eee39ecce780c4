"""The worker processes of one autoscaler, with their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.runpod.job_response import worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import JobStore


class ManagedWorkers:
    """Holds the workers whose process runs or has just ended, and knows their jobs.

    Owned by the event loop: the autoscaler adds and removes them, and the other parts of it read
    them.
    """

    def __init__(self, store: JobStore, worker_registry: WorkerRegistry, endpoint: str) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._workers: dict[str, ManagedWorker] = {}

    def __iter__(self) -> Iterator[ManagedWorker]:
        """Iterate over the workers of now, while some are added or removed."""
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._workers)

    def add(self, worker: ManagedWorker) -> None:
        """Add a worker that was started."""
        self._workers[worker.name] = worker

    def remove(self, worker: ManagedWorker) -> None:
        """Remove a worker that has ended."""
        del self._workers[worker.name]

    @property
    def active(self) -> list[ManagedWorker]:
        """The workers that go on."""
        return [worker for worker in self if worker.ending_at is None]

    @property
    def ending(self) -> list[ManagedWorker]:
        """The workers that end, but whose process still runs."""
        return [worker for worker in self if worker.ending_at is not None]

    def has_joined(self, worker: ManagedWorker) -> bool:
        """Return whether a worker has asked for a job, even if no tick has noticed it yet."""
        return worker.joined or self._worker_registry.is_registered(self._endpoint, worker.name)

    def has_jobs(self, worker: ManagedWorker) -> bool:
        """Return whether a worker runs a job."""
        return bool(self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)))

    def find_only_job(self, name: str) -> str | None:
        """Return the job that a worker runs; None if it runs none or several."""
        jobs = self._store.list_leased_jobs(worker_key(self._endpoint, name))
        return jobs[0].id if len(jobs) == 1 else None

    async def requeue_jobs(self, worker: ManagedWorker) -> None:
        """Return a worker's jobs to the queue; that does not count as a lost attempt."""
        for job in self._store.list_leased_jobs(worker_key(self._endpoint, worker.name)):
            await self._store.nack(job.id, job.attempt)

    def terminate(self, worker: ManagedWorker, now: float, exit_timeout_s: float) -> None:
        """Let a worker end after its jobs. A script may not pass the signal on, so it gets none."""
        worker.ending_at = now
        worker.exit_timeout_s = exit_timeout_s
        if self._worker_registry.is_registered(self._endpoint, worker.name):
            self._worker_registry.get_or_register(self._endpoint, worker.name).pause()
        worker.process.terminate()

    def kill(self, should_kill: Callable[[ManagedWorker], bool]) -> None:
        """Kill the workers that run and for which `should_kill` returns true."""
        for worker in self:
            if worker.process.returncode is None and should_kill(worker):
                worker.process.kill()
