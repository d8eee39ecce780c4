"""Clients that send jobs and read their status repeatedly, also after they have ended."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import httpx2
import orjson

from tests.crashes.ledger import Ledger
from tests.waiting import poll_until

_PAUSE_S = 0.02
_JOB_TIMEOUT_S = 300.0
# After a connection that broke off: the server needs the processor to come back.
_DOWN_S = 0.15
# How often a known result is read once more while other jobs are sent.
_REREAD_PROBABILITY = 0.2


class Client:
    """Concurrent senders with one job each, which go on through restarts of the server."""

    def __init__(self, http: httpx2.AsyncClient, endpoints: Sequence[str], seed: int) -> None:
        self.ledger = Ledger()
        self.finished = 0
        self.broke_off = 0
        # Responses of 5xx, by status and body.
        self.refused: Counter[tuple[int, str]] = Counter()
        self._http = http
        self._endpoints = endpoints
        self._rng = random.Random(seed)
        self._seed = seed
        self._endpoint_paths: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def send(self, count: int, concurrency: int) -> None:
        """Send jobs and follow each to its end."""
        numbers = iter(range(count))

        async def sender() -> None:
            for number in numbers:
                job_id = await self._submit(number)
                await self._wait_for_end(job_id)
                async with self._changed:
                    self.finished += 1
                    self._changed.notify_all()
                if self._rng.random() < _REREAD_PROBABILITY:
                    await self._read_status(self._rng.choice(list(self.ledger.finals)))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(sender())

    async def wait_until_finished(self, count: int) -> None:
        """Wait until `count` jobs have ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.finished >= count)

    async def read_all_statuses(self, concurrency: int) -> None:
        """Read the status of every acknowledged job."""
        ids = iter(list(self.ledger.prompts))

        async def reader() -> None:
            for job_id in ids:
                await poll_until(partial(self._read_status, job_id), _JOB_TIMEOUT_S, _PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(reader())

    async def _submit(self, number: int) -> str:
        prompt = f"say {number} of {self._seed} with nonce {self._rng.getrandbits(64):x}"
        endpoint_path = f"/v2/{self._rng.choice(self._endpoints)}"
        while True:
            response = await self._request(
                "POST", f"{endpoint_path}/run", {"input": {"prompt": prompt}}
            )
            if response is not None and response.status_code == 200:
                job_id: str = orjson.loads(response.content)["id"]
                self._endpoint_paths[job_id] = endpoint_path
                self.ledger.record_job(job_id, prompt)
                return job_id
            await asyncio.sleep(_PAUSE_S)

    async def _wait_for_end(self, job_id: str) -> None:
        # Clients either wait for the end in one request, or poll.
        verb, pause_s = ("status-sync", 0.0) if self._rng.random() < 0.7 else ("status", _PAUSE_S)
        await poll_until(partial(self._read_status, job_id, verb), _JOB_TIMEOUT_S, pause_s)

    async def _read_status(self, job_id: str, verb: str = "status") -> bool:
        response = await self._request("GET", f"{self._endpoint_paths[job_id]}/{verb}/{job_id}")
        if response is None:
            return False
        return self.ledger.record_status(job_id, response.status_code, response.content)

    async def _request(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> httpx2.Response | None:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx2.HTTPError:
            self.broke_off += 1
            await asyncio.sleep(_DOWN_S)
            return None
        if response.status_code >= 500:
            self.refused[response.status_code, response.text] += 1
        return response
