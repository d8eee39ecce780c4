"""List the workers of an endpoint in the shape of RunPod's REST API v2."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.runpod.job_response import LOCAL_WORKER_NAME
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.status.rfc3339 import format_time

_STATUSES = ("RUNNING", "IDLE", "INITIALIZING", "THROTTLED", "UNHEALTHY")


class WorkerList:
    """Describes managed workers, workers that were started by hand, and the local worker.

    A worker that crashed or did not start is UNHEALTHY until another one has replaced it.
    """

    def __init__(
        self,
        worker_registry: WorkerRegistry,
        autoscalers: Mapping[str, Autoscaler],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._worker_registry = worker_registry
        self._autoscalers = autoscalers
        self._clock = clock

    def describe(self, endpoint: str) -> dict[str, Any]:
        """Return the response of `GET /v2/serverless/{endpoint}/workers`."""
        workers = list(self._list(endpoint))
        counts = Counter(worker["status"] for worker in workers)
        return {
            "endpointVersion": self._version(endpoint),
            "summary": {
                **{status.lower(): counts[status] for status in _STATUSES},
                "total": len(workers),
            },
            "workers": workers,
        }

    def find(self, endpoint: str, worker: str) -> dict[str, Any] | None:
        """Return the entry of one worker; None if the endpoint has no such worker."""
        return next((each for each in self._list(endpoint) if each["id"] == worker), None)

    def _version(self, endpoint: str) -> int:
        """Return which state of the code the endpoint has: each reload is another version."""
        autoscaler = self._autoscalers.get(endpoint)
        return 1 if autoscaler is None else autoscaler.generation

    def _list(self, endpoint: str) -> Iterator[dict[str, Any]]:
        registry, version = self._worker_registry, self._version(endpoint)
        managed: dict[str, ManagedWorker] = {}
        autoscaler = self._autoscalers.get(endpoint)
        image = ""
        if autoscaler is not None:
            managed = {worker.name: worker for worker in autoscaler.workers}
            # RunPod has the name of its image there.
            image = autoscaler.command_line
        unhealthy = registry.unhealthy_workers(endpoint)
        local = registry.local_status(endpoint)
        if local is not None:
            yield _entry(LOCAL_WORKER_NAME, local, version)
        joined = {worker.name: worker for worker in registry.workers(endpoint)}
        for name, worker in joined.items():
            status = "RUNNING" if registry.leased_jobs(worker) else "IDLE"
            yield _entry(
                name,
                "UNHEALTHY" if name in unhealthy else status,
                managed[name].generation if name in managed else version,
                is_stale=name in managed and managed[name].generation != version,
                image=image if name in managed else "",
                uptime_s=self._clock() - worker.joined_at,
                started_at=worker.joined_at,
            )
        for name, starting in managed.items():
            if autoscaler is not None and name not in joined and name not in unhealthy:
                uptime_s = autoscaler.uptime_s(starting)
                yield _entry(
                    name,
                    "INITIALIZING",
                    starting.generation,
                    is_stale=starting.generation != version,
                    image=image,
                    uptime_s=uptime_s,
                    started_at=self._clock() - uptime_s,
                )
        for name in unhealthy.keys() - joined.keys():
            yield _entry(name, "UNHEALTHY", version)


def _entry(
    name: str,
    status: str,
    version: int,
    *,
    is_stale: bool = False,
    image: str = "",
    uptime_s: float = 0.0,
    started_at: float | None = None,
) -> dict[str, Any]:
    return {
        "id": name,
        "status": status,
        "isStale": is_stale,
        "version": version,
        "gpuCount": 0,
        "image": image,
        "uptimeSeconds": max(0, int(uptime_s)),
        "gpuTypeId": None,
        "dataCenterId": "local",
        "startedAt": None if started_at is None else format_time(started_at),
    }
