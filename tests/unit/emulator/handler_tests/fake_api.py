"""A stand-in for the server's job routes, behind a real HTTP client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2

from emulator.handler_tests.job_client import JobClient

# Returns the later statuses of a job from its input.
Answer = Callable[[Any], Sequence[Mapping[str, Any]]]


class FakeJobApi:
    """Answers `/run`, `/status`, `/cancel`, `/requests` and `/reset`; the last status repeats."""

    def __init__(self, answer: Answer = lambda job_input: [{"status": "COMPLETED"}]) -> None:
        self._answer = answer
        self._statuses: dict[str, list[Mapping[str, Any]]] = {}
        self.kept: dict[str, Mapping[str, Any]] = {}
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        # How many of the next requests are refused.
        self.refusals = 0

    def client(self, endpoint: str | None = None) -> JobClient:
        transport = httpx2.MockTransport(self._respond)
        http = httpx2.AsyncClient(base_url="http://server", transport=transport)
        return JobClient(http, endpoint)

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(f"{request.method} {request.url.raw_path.decode()}")
        if self.refusals:
            self.refusals -= 1
            return httpx2.Response(429, json={"error": {"message": "try later"}})
        *_, operation, last = request.url.path.split("/")
        if last == "run":
            body = json.loads(request.content)
            self.bodies.append(body)
            job_id = f"job-{len(self.bodies)}"
            self._statuses[job_id] = list(self._answer(body["input"]))
            return httpx2.Response(200, json={"id": job_id, "status": "IN_QUEUE"})
        if operation == "status":
            statuses = self._statuses[last]
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            return httpx2.Response(200, json={"id": last, **status})
        if operation == "requests" and last in self.kept:
            return httpx2.Response(200, json={"id": last, **self.kept[last]})
        if operation == "cancel":
            return httpx2.Response(200, json={"id": last, "status": "CANCELLED"})
        if last == "reset":
            return httpx2.Response(200, json={"removed": 3, "status": "completed"})
        message = f"there is no job {last}"
        return httpx2.Response(404, json={"error": {"message": message, "code": 404}})
