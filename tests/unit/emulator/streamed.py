"""A job whose stream a test fills, and the clients that read it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from emulator.runpod.stream_route import JobStream
from jobs import Job, Limits, MemoryJobStore, NewJob
from tests.unit.emulator.events import DEADLINE_S
from tests.waiting import wait_until


class StreamedJob:
    """A job on a worker whose chunks the test sends."""

    def __init__(self, comments_after_s: float | None = 3600, hold_s: float = 3600) -> None:
        self.store = MemoryJobStore(Limits(max_losses=9))
        self.stream = JobStream(self.store, hold_s, comments_after_s, "e/local")
        self.job: Job

    async def enqueue(self, job_input: bytes = b"{}") -> Job:
        self.job = await self.store.enqueue(NewJob(endpoint="e", input=job_input))
        return self.job

    async def begin(self, worker: str = "e/w") -> Job:
        if not hasattr(self, "job"):
            await self.enqueue()
        (self.job,) = await self.store.receive("e", worker, lease_s=3600)
        return self.job

    async def append_chunks(self, *values: Any) -> None:
        chunks = [orjson.dumps(value) for value in values]
        assert await self.store.append_chunks(self.job.id, self.job.attempt, chunks)

    async def lose(self) -> None:
        assert await self.store.nack(self.job.id, self.job.attempt, "its worker went away")

    async def end(self, output: bytes = b"null") -> None:
        assert await self.store.ack(self.job.id, self.job.attempt, output=output)

    def ask(self, peer: Any) -> asyncio.Task[dict[str, Any]]:
        """Ask for JSON as a client does."""

        async def ask() -> dict[str, Any]:
            request = peer.request()
            # The body of a GET, which uvicorn hands on as well.
            await peer.receive()
            response = await self.stream.respond(request, self.job)
            result: dict[str, Any] = orjson.loads(response.body)
            return result

        return asyncio.create_task(ask())

    async def answered(self, peer: Any) -> tuple[str, list[Any]]:
        async with asyncio.timeout(DEADLINE_S):
            response = await self.ask(peer)
        assert response.keys() - {"message"} == {"status", "stream"}
        return response["status"], [item["output"] for item in response["stream"]]

    def listen(self, peer: Any, last: str = "") -> asyncio.Task[None]:
        """Ask for events, which go to `peer`."""

        async def listen() -> None:
            headers = {"accept": "text/event-stream", "last_event_id": last}
            await peer.receive()
            job = await self.store.get(self.job.id) or self.job
            response = await self.stream.respond(peer.request(**headers), job)
            await response(peer.request().scope, peer.receive, peer.send)

        return asyncio.create_task(listen())


async def comes(peer: Any, mark: bytes) -> None:
    await wait_until(lambda: mark in peer.body, DEADLINE_S, gap_s=0)
