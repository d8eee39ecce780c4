"""A worker whose calls a test makes one by one, over the worker routes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.integration.emulator.serving import RawConnection, Server, build_request_head
from tests.unit.emulator.events import DEADLINE_S


class ScriptedWorker:
    """Takes, streams and ends jobs of one endpoint, each step when a test calls its method."""

    def __init__(self, client: httpx2.AsyncClient, endpoint: str = "other", name: str = "w1"):
        self._client = client
        self._base = f"/v2/{endpoint}"
        self._name = name
        self._job_ids: set[str] = set()

    async def take_job(self) -> dict[str, Any]:
        """Take the next job; wait for one if necessary."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                path = (
                    f"{self._base}/job-take/{self._name}?job_in_progress={int(bool(self._job_ids))}"
                )
                response = await self._client.get(path)
                # After an empty response, poll again, as the SDK does.
                if response.status_code != 204:
                    break
        job: dict[str, Any] = response.json()
        self._job_ids.add(job["id"])
        return job

    async def send_chunks(self, job: dict[str, Any], *outputs: Any) -> None:
        """Post outputs as chunks, as the SDK does for a generator."""
        for output in outputs:
            await self._post("job-stream", job, {"output": output})

    async def post_result(self, job: dict[str, Any], **body: Any) -> None:
        """Post `output` or `error` as the result; with `status` IN_PROGRESS, as progress."""
        await self._post("job-done", job, body)
        if "status" not in body:
            self._job_ids.discard(job["id"])

    async def _post(self, route: str, job: dict[str, Any], body: dict[str, Any]) -> None:
        path = f"{self._base}/{route}/{self._name}/{job['id']}?isStream=false"
        response = await self._client.post(path, json=body)
        assert response.json() == {"ok": True}

    async def drop_connection(self, server: Server) -> None:
        """Abort a poll, as the death of the worker process does."""
        before = len(server.tasks)
        with await RawConnection.connect(server.port) as wire:
            await wire.send(build_request_head("GET", f"{self._base}/job-stop/{self._name}"))
            await server.wait_until(lambda: len(server.tasks) > before)
