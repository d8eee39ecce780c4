"""The endpoints of a server that runs handlers: others do not exist, as on RunPod."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.runpod.worker_registry import WorkerRegistry
from handler.errors import NotFound
from jobs import MemoryJobStore


class KnownEndpoints:
    """Refuses calls to an endpoint that no handler, no worker and no stored job has.

    A misspelled endpoint would have jobs that no worker ever takes. On a server without handlers
    every endpoint exists, because a worker for it may be started later.
    """

    def __init__(
        self, handlers: Sequence[str], store: MemoryJobStore, worker_registry: WorkerRegistry
    ) -> None:
        self._handlers = handlers
        self._store = store
        self._worker_registry = worker_registry

    def check(self, endpoint: str) -> None:
        """Return if an endpoint exists. Raises NotFound."""
        if not self._handlers or endpoint in self._handlers:
            return
        if self._worker_registry.workers(endpoint) or endpoint in self._store.list_endpoints():
            return
        raise NotFound(
            f"there is no endpoint {endpoint}, there is: {', '.join(self._handlers)}; a worker "
            "that is started by hand makes its endpoint known when it asks for a job"
        )
