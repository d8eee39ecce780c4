"""A worker that does what a test says, over the worker's routes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.integration.emulator.serving import Server, Wire, head
from tests.unit.emulator.events import DEADLINE_S


class Puppet:
    """Takes jobs of one endpoint, streams and ends them, each step when it is told."""

    def __init__(self, client: httpx2.AsyncClient, endpoint: str = "other", name: str = "w1"):
        self._client = client
        self._base = f"/v2/{endpoint}"
        self._name = name
        self._has: set[str] = set()

    async def take(self) -> dict[str, Any]:
        """Take the next job, which must be there or come."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                path = f"{self._base}/job-take/{self._name}?job_in_progress={int(bool(self._has))}"
                response = await self._client.get(path)
                # An empty answer is a reason to ask again, as the SDK does.
                if response.status_code != 204:
                    break
        job: dict[str, Any] = response.json()
        self._has.add(job["id"])
        return job

    async def say(self, job: dict[str, Any], *outputs: Any) -> None:
        """Stream what a generator would yield."""
        for output in outputs:
            await self._post("job-stream", job, {"output": output})

    async def done(self, job: dict[str, Any], **body: Any) -> None:
        """Report `output` or `error`; with `status` IN_PROGRESS, progress."""
        await self._post("job-done", job, body)
        if "status" not in body:
            self._has.discard(job["id"])

    async def _post(self, route: str, job: dict[str, Any], body: dict[str, Any]) -> None:
        path = f"{self._base}/{route}/{self._name}/{job['id']}?isStream=false"
        response = await self._client.post(path, json=body)
        assert response.json() == {"ok": True}

    async def vanish(self, server: Server) -> None:
        """Break off a poll, as the end of its process does."""
        before = len(server.tasks)
        with await Wire.connect(server.port) as wire:
            await wire.send(head("GET", f"{self._base}/job-stop/{self._name}"))
            await server.becomes(lambda: len(server.tasks) > before)
