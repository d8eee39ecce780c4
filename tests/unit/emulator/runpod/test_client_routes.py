"""Which routes there are for clients, in both of their forms, and the log of a wrong endpoint."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette

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
    methods = {route.path: route.methods for route in routes}
    assert len(methods) == len(routes)
    # The bare /health is the server's own (R42).
    with_endpoint = BOTH_FORMS | {"/health": EITHER}
    assert methods == BOTH_FORMS | {
        f"/v2/{{endpoint}}{path}": allowed for path, allowed in with_endpoint.items()
    }


async def test_job_of_an_endpoint_that_no_worker_serves_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryJobStore()
    worker_registry = WorkerRegistry(store, lease_s=30, grace_s=2)
    worker_registry.set_explain_wait("resize", lambda: None)
    routes = ClientRoutes(store, worker_registry, EmulatorSettings(), ShutdownState()).routes()
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        wrong = await client.post("/v2/rezise/run", json={"input": {}})
        right = await client.post("/v2/resize/run", json={"input": {}})
    assert (wrong.status_code, right.status_code) == (200, 200)
    reason = "no worker asks for jobs of the endpoint rezise, but of resize"
    assert caplog.messages == [f"job {wrong.json()['id']} waits: {reason}"]
