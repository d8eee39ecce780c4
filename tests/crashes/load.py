"""A random mix of everything that clients do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from tests.crashes.ledger import FINAL
from tests.integration.emulator.serving import RawConnection

_SSE = {"accept": "text/event-stream"}
_PROMPT = "what came of the ten thousand jobs that were sent this morning"
_JOB_TIMEOUT_S = 30.0


class Load:
    """Concurrent clients; each picks its next operation at random."""

    def __init__(self, http: httpx2.AsyncClient, port: int, hook_url: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._http = http
        self._port = port
        self._hook_url = hook_url
        self._rng = random.Random(seed)
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self._run,
            self._run,
            self._runsync,
            self._far,
            self._far,
            self._stream,
            self._events,
            self._cancel_waiting,
            self._cancel_running,
            self._chat,
            self._leave,
            self._nonsense,
        ]

    @property
    def jobs(self) -> int:
        return self.done.total()

    async def run_clients(self, clients: int, pause_s: float) -> None:
        """Run this many clients until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(pause_s))

    async def _client(self, pause_s: float) -> None:
        while True:
            kind = self._rng.choice(self._kinds)
            async with asyncio.timeout(_JOB_TIMEOUT_S):
                await kind()
            self.done[kind.__name__.strip("_")] += 1
            await asyncio.sleep(pause_s)

    async def _run(self) -> None:
        fields = {"webhook": self._hook_url} if self._rng.random() < 0.2 else {}
        await self._wait_for_completion("default", await self._submit("default", **fields))

    async def _far(self) -> None:
        await self._wait_for_completion("far", await self._submit("far"))

    async def _runsync(self) -> None:
        job = await self._post("/runsync", {"input": {"prompt": _PROMPT}})
        assert job["status"] == "COMPLETED", job

    async def _stream(self) -> None:
        job_id = await self._submit("default")
        chunks: list[Any] = []
        while True:
            response = await self._http.get(f"/v2/default/stream/{job_id}")
            body = response.json()
            chunks += body["stream"]
            if body["status"] in FINAL:
                break
        assert chunks, body

    async def _events(self) -> None:
        job_id = await self._submit("default")
        path = f"/v2/default/stream/{job_id}"
        async with self._http.stream("GET", path, headers=_SSE) as response:
            body = await response.aread()
        assert b"event: end" in body, body

    async def _cancel_waiting(self) -> None:
        job_id = await self._submit("nobody")
        job = await self._post(f"/v2/nobody/cancel/{job_id}", {})
        assert job["status"] == "CANCELLED", job

    async def _cancel_running(self) -> None:
        job_id = await self._submit("default")
        await asyncio.sleep(self._rng.random() * 0.02)
        await self._post(f"/v2/default/cancel/{job_id}", {})

    async def _chat(self) -> None:
        messages = [{"role": "user", "content": _PROMPT}]
        body = {"messages": messages, "stream": True}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert b"[DONE]" in await response.aread()

    async def _leave(self) -> None:
        with await RawConnection.connect(self._port) as wire:
            await wire.post("/v1/completions", {"prompt": _PROMPT, "stream": True})
            if self._rng.random() < 0.7:
                await asyncio.sleep(self._rng.random() * 0.02)
            wire.close(reset=self._rng.random() < 0.3)

    async def _nonsense(self) -> None:
        assert (await self._http.post("/run", json={})).status_code == 400
        assert (await self._http.get("/v2/default/status/nothing")).status_code == 404

    async def _submit(self, endpoint: str, **fields: Any) -> str:
        body = {"input": {"prompt": _PROMPT}} | fields
        job_id: str = (await self._post(f"/v2/{endpoint}/run", body))["id"]
        return job_id

    async def _wait_for_completion(self, endpoint: str, job_id: str) -> None:
        response = await self._http.get(f"/v2/{endpoint}/status-sync/{job_id}")
        assert response.json()["status"] == "COMPLETED", response.text

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._http.post(path, json=body)
        assert response.status_code == 200, (path, response.text)
        return response.json()
