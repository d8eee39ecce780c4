"""The unhealthy workers of an endpoint, until another worker has taken their place."""

from __future__ import annotations

from collections.abc import Iterable

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.worker_exit import describe_worker_exit
from emulator.runpod.worker_registry import WorkerRegistry


class UnhealthyWorkers:
    """Shows a worker that crashed or did not start as unhealthy until its successor has started.

    Owned by the event loop; the autoscaler and its parts report to it.
    """

    def __init__(self, worker_registry: WorkerRegistry, endpoint: str) -> None:
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        # The names of the workers without a successor yet.
        self._names: list[str] = []

    def warn(self, worker: ManagedWorker, reason: str) -> None:
        """Show a worker as unhealthy that is not replaced for it; `reason` is a sentence."""
        self._worker_registry.mark_unhealthy(self._endpoint, worker.name, reason)

    def add(self, worker: ManagedWorker, reason: str) -> None:
        """Show a worker as unhealthy until its successor starts; `reason` is a sentence."""
        self.warn(worker, reason)
        self._names.append(worker.name)

    def add_ended(self, worker: ManagedWorker, code: int, reason: str) -> None:
        """Show a worker that has ended as unhealthy, in the place of the one that it replaced.

        `reason` is a predicate.
        """
        reported = self._worker_registry.unhealthy_workers(self._endpoint).get(worker.name)
        if reported is not None and reported != f"it {worker.long_start}":
            # The worker itself has reported why it ends, which says more than its output.
            ended = worker.process.end_reason or describe_worker_exit(code)
            reason = f"{ended} after it reported: {reported}"
        self.clear_replaced(worker)
        self.add(worker, f"it {reason}")

    def take_name(self) -> str | None:
        """Return the name of the worker that the next one replaces; None if it replaces none."""
        return self._names.pop(0) if self._names else None

    def clear_replaced(self, worker: ManagedWorker) -> None:
        """Remove the unhealthy worker that this one has replaced."""
        if worker.replaces is not None:
            self._worker_registry.clear_unhealthy(self._endpoint, worker.replaces)
            worker.replaces = None

    def clear(self, workers: Iterable[ManagedWorker]) -> None:
        """Show none of the earlier workers any more, nor the predecessors of `workers`."""
        for name in self._names:
            self._worker_registry.clear_unhealthy(self._endpoint, name)
        for worker in workers:
            self.clear_replaced(worker)
        self._names.clear()
