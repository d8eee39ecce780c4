"""A client, a worker and a webhook's receiver in one, who note what they were told."""

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

# Endpoints on which nothing works by itself; on the first some jobs wait from before.
FAR, IDLE, LOST = "far", "idle", "lost"
_ENDS_S = 20.0


class Gone(Exception):
    """The server broke off; for a scene, the end."""


class Scene:
    """What was said and heard, through all lives of one server."""

    def __init__(self, hook_url: str) -> None:
        self.hook_url = hook_url
        self.ledger = Ledger(strict=False)
        # Jobs whose time may be over.
        self.passing: set[str] = set()
        # Jobs of which a client was told that they are cancelled.
        self.cancelled: set[str] = set()
        # Jobs whose sender wants to be told of their end.
        self.hooked: set[str] = set()
        self.http: httpx2.AsyncClient
        self._numbers = itertools.count(1)
        self._places: dict[str, str] = {}
        self._kept: dict[str, Any] | None = None

    # -- the sender -----------------------------------------------------------------------------

    async def run(self, endpoint: str, **fields: Any) -> str:
        """Send a job; return the id it got."""
        prompt = f"say number {next(self._numbers)}"
        body = {"input": {"prompt": prompt}} | fields
        told = await self.ask("POST", f"/v2/{endpoint}/run", body)
        if "webhook" in fields:
            self.hooked.add(told["id"])
        return self._accepted(told["id"], prompt, endpoint)

    async def runsync(self, endpoint: str, wait_ms: int) -> dict[str, Any]:
        """Send a job and wait; only one that has not ended has an id to come back with."""
        prompt = f"say number {next(self._numbers)}"
        path = f"/v2/{endpoint}/runsync?wait={wait_ms}"
        told = await self.ask("POST", path, {"input": {"prompt": prompt}})
        if told["status"] not in FINAL:
            self._accepted(told["id"], prompt, endpoint)
        return told

    def _accepted(self, job_id: str, prompt: str, endpoint: str) -> str:
        self._places[job_id] = f"/v2/{endpoint}"
        self.ledger.acknowledged(job_id, prompt)
        return job_id

    async def ends(self, job_id: str) -> dict[str, Any]:
        """Look at a job until it has ended."""
        await poll_until(partial(self.look, job_id), _ENDS_S)
        found: dict[str, Any] = orjson.loads(self.ledger.finals.get(job_id, b"{}"))
        return found

    async def look(self, job_id: str) -> bool:
        """Look at a job; return whether it has ended."""
        answer = await self._request("GET", f"{self._places[job_id]}/status/{job_id}", None)
        if answer.status_code == 404 and job_id in self.passing:
            return True
        return self.ledger.saw(job_id, answer.status_code, answer.content)

    async def cancel(self, job_id: str) -> None:
        told = await self.ask("POST", f"{self._places[job_id]}/cancel/{job_id}")
        if told["status"] == "CANCELLED":
            self.cancelled.add(job_id)

    async def retry(self, job_id: str) -> None:
        # From here on it may run again, whether or not that is said.
        self.ledger.finals.pop(job_id, None)
        await self.ask("POST", f"{self._places[job_id]}/retry/{job_id}")

    async def runsync_again(self, endpoint: str) -> None:
        """Have a job fail whose sender waits, and run it again by the id in its result."""
        worker = "two"
        while True:
            waiting = asyncio.create_task(self.runsync(endpoint, 5_000))
            job = await poll_until(partial(self.take, endpoint, worker), _ENDS_S)
            await self.tell("job-done", endpoint, worker, job["id"], {"error": "not today"})
            assert (await waiting)["status"] == "FAILED"
            answer = await self._request("POST", f"/v2/{endpoint}/retry/{job['id']}", None)
            # Such a result is kept for a moment only.
            if answer.status_code != 404:
                break
        assert answer.status_code == 200, answer.text
        self._accepted(job["id"], job["input"]["prompt"], endpoint)

    # -- the worker -----------------------------------------------------------------------------

    async def taken_again(self, endpoint: str, worker: str) -> None:
        """Take a job that somebody else has, as soon as that one is given up."""
        await poll_until(partial(self.take, endpoint, worker), _ENDS_S)

    async def take(self, endpoint: str, worker: str) -> dict[str, Any] | None:
        answer = await self._request("GET", f"/v2/{endpoint}/job-take/{worker}?gpu=none", None)
        if answer.status_code == 204:
            return None
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = orjson.loads(answer.content)
        return job

    async def tell(
        self, verb: str, endpoint: str, worker: str, job_id: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        return await self.ask("POST", f"/v2/{endpoint}/{verb}/{worker}/{job_id}?gpu=none", body)

    async def work_off(self, endpoint: str) -> None:
        """Do all that waits on an endpoint, as a worker nobody has seen before."""
        worker = "closer"
        while (job := await self.take(endpoint, worker)) is not None:
            await self.tell(
                "job-done", endpoint, worker, job["id"], {"output": job["input"]["prompt"]}
            )
            if job["id"].startswith("sync-"):
                # Such a result is kept for a moment only.
                self.passing.add(job["id"])

    # -- the wire -------------------------------------------------------------------------------

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        answer = await self._request(method, path, body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = orjson.loads(answer.content)
        return told

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        try:
            return await self.http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise Gone(f"{method} {path}: {error!r}") from error

    async def keep(self) -> None:
        """Take a job and be busy with it until `check`."""
        self._kept = await self.take(FAR, "keeper")
        assert self._kept is not None

    # -- afterwards -----------------------------------------------------------------------------

    async def check(self) -> None:
        """Look at every promise; what can still be done is done."""
        job_id = await self.run("default")
        assert (await self.ends(job_id))["status"] == "COMPLETED"
        if self._kept is not None:
            # A worker that outlived the server brings its result; if it came too late, that is
            # nobody's loss.
            said = {"output": self._kept["input"]["prompt"]}
            await self.tell("job-done", FAR, "keeper", self._kept["id"], said)
        async with asyncio.timeout(_ENDS_S):
            while waiting := await self._unfinished():
                for place in {self._places[each] for each in waiting}:
                    await self.work_off(place.removeprefix("/v2/"))
        for each in self.ledger.prompts:
            await self.look(each)
        for each in self.cancelled - self.passing:
            final = orjson.loads(self.ledger.finals.get(each, b'{"status": "lost"}'))
            assert final["status"] == "CANCELLED", final
        assert not self.ledger.broken, "; ".join(self.ledger.broken)

    async def _unfinished(self) -> list[str]:
        return [each for each in self.ledger.prompts if not await self.look(each)]
