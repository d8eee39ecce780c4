"""Which endpoints exist on a server that runs handlers."""

from __future__ import annotations

import pytest

from emulator.runpod.known_endpoints import KnownEndpoints
from emulator.runpod.worker_registry import WorkerRegistry
from handler.errors import NotFound
from jobs import MemoryJobStore, NewJob


@pytest.fixture
def store() -> MemoryJobStore:
    return MemoryJobStore()


@pytest.fixture
def registry(store: MemoryJobStore) -> WorkerRegistry:
    return WorkerRegistry(store, lease_s=30, grace_s=2)


def test_other_endpoint_is_refused_with_the_names_of_the_handlers(
    store: MemoryJobStore, registry: WorkerRegistry
) -> None:
    endpoints = KnownEndpoints(["resize", "caption"], store, registry)
    endpoints.check("caption")
    with pytest.raises(NotFound, match="there is no endpoint captions, there is: resize, caption"):
        endpoints.check("captions")


def test_every_endpoint_exists_without_handlers(
    store: MemoryJobStore, registry: WorkerRegistry
) -> None:
    KnownEndpoints([], store, registry).check("any")


async def test_endpoint_with_a_worker_or_a_job_exists(
    store: MemoryJobStore, registry: WorkerRegistry
) -> None:
    endpoints = KnownEndpoints(["resize"], store, registry)
    registry.get_or_register("by-hand", "w1")
    endpoints.check("by-hand")
    await store.enqueue(NewJob(endpoint="earlier", input=b"{}"))
    endpoints.check("earlier")
