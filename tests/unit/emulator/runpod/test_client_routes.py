"""Which routes there are for clients, in both of their forms."""

from __future__ import annotations

from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.client_routes import ClientRoutes
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.emulator_settings import EmulatorSettings
from jobs import MemoryJobStore

EITHER = {"GET", "HEAD", "POST"}
BOTH_FORMS = {
    "/run": {"POST"},
    "/runsync": {"POST"},
    "/status/{job_id}": EITHER,
    "/status-sync/{job_id}": EITHER,
    "/stream/{job_id}": EITHER,
    "/cancel/{job_id}": {"POST"},
    "/retry/{job_id}": {"POST"},
    "/purge-queue": {"POST"},
    "/reset": {"POST"},
    "/requests": EITHER,
    "/requests/{job_id}": EITHER,
}


def test_every_route_exists_with_and_without_an_endpoint() -> None:
    store = MemoryJobStore()
    worker_registry = WorkerRegistry(store, lease_s=30, grace_s=2)
    routes = ClientRoutes(store, worker_registry, EmulatorSettings(), ShutdownState()).routes()
    found = {route.path: route.methods for route in routes}
    assert len(found) == len(routes)
    # The bare /health is the server's own (R42).
    with_endpoint = BOTH_FORMS | {"/health": EITHER}
    assert found == BOTH_FORMS | {
        f"/v2/{{endpoint}}{path}": methods for path, methods in with_endpoint.items()
    }
