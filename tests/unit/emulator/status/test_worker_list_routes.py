from __future__ import annotations

from typing import Any

import httpx2

from emulator.http.responses import on_error
from emulator.status.endpoint_list import EndpointList
from emulator.status.worker_list_routes import WorkerListRoutes
from handler.errors import HandlerError
from tests.unit.emulator.asgi import serve_routes
from tests.unit.emulator.autoscaling.scene import ENDPOINT
from tests.unit.emulator.status.test_worker_list import ListScene


class RoutesScene(ListScene):
    """The routes over an autoscaler with pretended processes."""

    def __init__(self, **scaling: Any) -> None:
        super().__init__(**scaling)
        endpoints = EndpointList({ENDPOINT: self.autoscaler}, lambda: ["by-hand"], 600_000)
        app = serve_routes(
            WorkerListRoutes(endpoints, self.list, self.logs).routes(), {HandlerError: on_error}
        )
        transport = httpx2.ASGITransport(app=app)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://server")

    async def get(self, path: str) -> httpx2.Response:
        return await self.client.get(f"/v2/serverless/{ENDPOINT}/workers{path}")


async def test_crash_looping_worker_is_listed_and_explained_by_its_log() -> None:
    scene = RoutesScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.processes[0].prints = ["Traceback", "ImportError: no torch"]
    scene.processes[0].end(1)
    await scene.after(0.25)
    async with scene.client:
        (worker,) = (await scene.get("")).json()["workers"]
        assert worker["status"] == "UNHEALTHY"
        log = await scene.get(f"/{worker['id']}/logs")
    assert log.headers["content-type"].startswith("text/event-stream")
    for part in ("ImportError: no torch", '"system"', "exited with code 1"):
        assert part in log.text


async def test_log_that_is_not_there_is_a_problem_with_its_reason() -> None:
    scene = RoutesScene()
    scene.worker_registry.get_or_register(ENDPOINT, "by-hand")
    scene.worker_registry.set_local_slots(ENDPOINT, lambda: (1, 0, 0))
    reasons = {
        "nobody": "endpoint here has no worker nobody, or it ended long ago",
        "by-hand": "by-hand was started by hand, and its output is where it was started",
        "local": "local is part of the server, and its lines are in the server's log",
    }
    async with scene.client:
        for worker, reason in reasons.items():
            answer = await scene.get(f"/{worker}/logs")
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json() == {
                "title": "Not Found",
                "status": 404,
                "detail": reason,
                "errors": [],
            }
        wrong = await scene.get("/nobody/logs?tail=none")
    assert wrong.status_code == wrong.json()["status"] == 400
    assert wrong.json()["detail"] == 'tail must be a whole number from 0 to 5000, got "none"'


async def test_endpoints_are_listed_in_the_shape_of_rest_v2() -> None:
    scene = RoutesScene(min_workers=1, max_workers=2)
    async with scene.client:
        listed = (await scene.client.get("/v2/serverless")).json()["endpoints"]
        (own, other) = [
            (await scene.client.get(f"/v2/serverless/{each['id']}")).json() for each in listed
        ]
        missing = await scene.client.get("/v2/serverless/nobody")
    assert listed == [own, other]
    assert (own["id"], own["name"], other["id"]) == (ENDPOINT, ENDPOINT, "by-hand")
    assert own["workers"] == {"min": 1, "max": 2, "idleTimeout": 5}
    assert own["scaling"] == {"type": "QUEUE_DELAY", "queueDelay": 4.0}
    assert other["workers"]["max"] == 0
    assert (own["type"], own["timeout"], own["flashboot"]) == ("QUEUE", 600_000, "OFF")
    assert missing.status_code == 404
    assert missing.json()["detail"] == "there is no endpoint nobody"


async def test_endpoint_that_scales_by_count_reports_its_scaler() -> None:
    scene = RoutesScene(scaler="count", request_count=3)
    async with scene.client:
        own = (await scene.client.get(f"/v2/serverless/{ENDPOINT}")).json()
    assert own["scaling"] == {"type": "REQUEST_COUNT", "requestCount": 3}
