"""A client and a worker in one, which record what the server acknowledged."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx2
import orjson

from tests.crashes.ledger import FINAL, Ledger
from tests.waiting import poll_until

# Endpoints without workers of their own; jobs from before the test wait on the first one.
FAR, IDLE, LOST = "far", "idle", "lost"
_JOB_TIMEOUT_S = 30.0


class ServerDisconnected(Exception):
    """The connection to the server broke."""


class RecordingClient:
    """Sends jobs and works on them, and records the responses over all restarts of one server."""

    def __init__(self, hook_url: str) -> None:
        self.hook_url = hook_url
        self.ledger = Ledger(strict=False)
        # Jobs whose result may have expired.
        self.expiring: set[str] = set()
        # Jobs that the server acknowledged as cancelled.
        self.cancelled: set[str] = set()
        # Jobs that were sent with a webhook.
        self.with_webhook: set[str] = set()
        self.http: httpx2.AsyncClient
        self._numbers = itertools.count(1)
        self._endpoint_paths: dict[str, str] = {}
        self._held_job: dict[str, Any] | None = None

    # -- the sender -----------------------------------------------------------------------------

    async def run(self, endpoint: str, **fields: Any) -> str:
        """Send a job; return its id."""
        prompt = f"say number {next(self._numbers)}"
        body = {"input": {"prompt": prompt}} | fields
        response = await self.request_json("POST", f"/v2/{endpoint}/run", body)
        if "webhook" in fields:
            self.with_webhook.add(response["id"])
        return self._record_job(response["id"], prompt, endpoint)

    async def runsync(self, endpoint: str, wait_ms: int) -> dict[str, Any]:
        """Send a job and wait; record it if it has not ended, because its status stays readable."""
        prompt = f"say number {next(self._numbers)}"
        path = f"/v2/{endpoint}/runsync?wait={wait_ms}"
        response = await self.request_json("POST", path, {"input": {"prompt": prompt}})
        if response["status"] not in FINAL:
            self._record_job(response["id"], prompt, endpoint)
        return response

    def _record_job(self, job_id: str, prompt: str, endpoint: str) -> str:
        self._endpoint_paths[job_id] = f"/v2/{endpoint}"
        self.ledger.record_job(job_id, prompt)
        return job_id

    async def wait_for_end(self, job_id: str) -> dict[str, Any]:
        """Read a job's status until it has ended; return the job."""
        await poll_until(partial(self.read_status, job_id), _JOB_TIMEOUT_S)
        job: dict[str, Any] = orjson.loads(self.ledger.finals.get(job_id, b"{}"))
        return job

    async def read_status(self, job_id: str) -> bool:
        """Read a job's status; return whether it has ended."""
        response = await self._request(
            "GET", f"{self._endpoint_paths[job_id]}/status/{job_id}", None
        )
        if response.status_code == 404 and job_id in self.expiring:
            return True
        return self.ledger.record_status(job_id, response.status_code, response.content)

    async def cancel(self, job_id: str) -> None:
        response = await self.request_json(
            "POST", f"{self._endpoint_paths[job_id]}/cancel/{job_id}"
        )
        if response["status"] == "CANCELLED":
            self.cancelled.add(job_id)

    async def retry(self, job_id: str) -> None:
        # From here on the job may run again, even if the response is lost.
        self.ledger.finals.pop(job_id, None)
        await self.request_json("POST", f"{self._endpoint_paths[job_id]}/retry/{job_id}")

    async def retry_runsync(self, endpoint: str) -> None:
        """Fail a job of `/runsync`, and retry it by the id in its result."""
        worker = "two"
        while True:
            waiting = asyncio.create_task(self.runsync(endpoint, 5_000))
            job = await poll_until(partial(self.take, endpoint, worker), _JOB_TIMEOUT_S)
            await self.post_update("job-done", endpoint, worker, job["id"], {"error": "not today"})
            assert (await waiting)["status"] == "FAILED"
            response = await self._request("POST", f"/v2/{endpoint}/retry/{job['id']}", None)
            # The result of `/runsync` is kept for a short time only.
            if response.status_code != 404:
                break
        assert response.status_code == 200, response.text
        self._record_job(job["id"], job["input"]["prompt"], endpoint)

    # -- the worker -----------------------------------------------------------------------------

    async def take_when_released(self, endpoint: str, worker: str) -> None:
        """Take a job that another worker holds, as soon as the server releases it."""
        await poll_until(partial(self.take, endpoint, worker), _JOB_TIMEOUT_S)

    async def take(self, endpoint: str, worker: str) -> dict[str, Any] | None:
        response = await self._request("GET", f"/v2/{endpoint}/job-take/{worker}?gpu=none", None)
        if response.status_code == 204:
            return None
        assert response.status_code == 200, response.text
        job: dict[str, Any] = orjson.loads(response.content)
        return job

    async def post_update(
        self, verb: str, endpoint: str, worker: str, job_id: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        return await self.request_json(
            "POST", f"/v2/{endpoint}/{verb}/{worker}/{job_id}?gpu=none", body
        )

    async def finish_waiting_jobs(self, endpoint: str) -> None:
        """Complete all waiting jobs of an endpoint, as a worker that is new to the server."""
        worker = "closer"
        while (job := await self.take(endpoint, worker)) is not None:
            await self.post_update(
                "job-done", endpoint, worker, job["id"], {"output": job["input"]["prompt"]}
            )
            if job["id"].startswith("sync-"):
                # The result of `/runsync` is kept for a short time only.
                self.expiring.add(job["id"])

    # -- the wire -------------------------------------------------------------------------------

    async def request_json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        response = await self._request(method, path, body)
        assert response.status_code == 200, response.text
        payload: dict[str, Any] = orjson.loads(response.content)
        return payload

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        try:
            return await self.http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise ServerDisconnected(f"{method} {path}: {error!r}") from error

    async def hold_job(self) -> None:
        """Take a job and hold it until `check`."""
        self._held_job = await self.take(FAR, "keeper")
        assert self._held_job is not None

    # -- afterwards -----------------------------------------------------------------------------

    async def check(self) -> None:
        """Finish all open jobs, then check every promise."""
        job_id = await self.run("default")
        assert (await self.wait_for_end(job_id))["status"] == "COMPLETED"
        if self._held_job is not None:
            # A worker that outlived the server sends its result, which may come too late.
            body = {"output": self._held_job["input"]["prompt"]}
            await self.post_update("job-done", FAR, "keeper", self._held_job["id"], body)
        async with asyncio.timeout(_JOB_TIMEOUT_S):
            while waiting := await self._unfinished():
                for endpoint_path in {self._endpoint_paths[each] for each in waiting}:
                    await self.finish_waiting_jobs(endpoint_path.removeprefix("/v2/"))
        for each in self.ledger.prompts:
            await self.read_status(each)
        for each in self.cancelled - self.expiring:
            final = orjson.loads(self.ledger.finals.get(each, b'{"status": "lost"}'))
            assert final["status"] == "CANCELLED", final
        assert not self.ledger.broken, "; ".join(self.ledger.broken)

    async def _unfinished(self) -> list[str]:
        return [each for each in self.ledger.prompts if not await self.read_status(each)]
