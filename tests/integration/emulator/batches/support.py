"""A client for tests of batches, on top of the openai package."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from tests.integration.batch.runs import call
from tests.integration.emulator.serving import Server
from tests.waiting import poll_until

ENDPOINT = "/v1/completions"
HANG = {"when": "hang", "pieces": ["a", {"hang_s": 3600}]}
# A file of one line.
GOOD = json.dumps(call("one")).encode()
FINAL = ("completed", "failed", "expired", "cancelled")


class BatchClient:
    """An OpenAI client with the steps that many tests need."""

    def __init__(self, server: Server, key: str = "any") -> None:
        self.server = server
        self.openai = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    async def upload(self, data: bytes, **options: Any) -> str:
        file = await self.openai.files.create(file=("in.jsonl", data), purpose="batch", **options)
        return file.id

    async def create(
        self, lines: Iterable[dict[str, Any]], endpoint: str = ENDPOINT, **options: Any
    ) -> Batch:
        file_id = await self.upload(jsonl(lines))
        return await self.batch(file_id, endpoint, **options)

    async def batch(self, file_id: str, endpoint: str = ENDPOINT, **options: Any) -> Batch:
        return await self.openai.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
            **options,
        )

    async def wait_until(self, batch: Batch, condition: Callable[[Batch], bool]) -> Batch:
        async def check() -> Batch | None:
            current = await self.openai.batches.retrieve(batch.id)
            return current if condition(current) else None

        return await poll_until(check)

    async def ended(self, batch: Batch) -> Batch:
        return await self.wait_until(batch, lambda current: current.status in FINAL)

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of a file; check that its last line is complete."""
        assert file_id is not None
        content = (await self.openai.files.content(file_id)).content
        assert content.endswith(b"\n")
        return [json.loads(line) for line in content.splitlines()]


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def calls(count: int, prompt: str = "p") -> list[dict[str, Any]]:
    return [call(f"id {number}", f"{prompt} {number}") for number in range(count)]


def ids(lines: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(line["custom_id"] for line in lines)


def counts(batch: Batch) -> tuple[int, int, int]:
    request_counts = batch.request_counts
    assert request_counts is not None
    return request_counts.total, request_counts.completed, request_counts.failed


@asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[BatchClient]:
    client = BatchClient(server, **options)
    async with client.openai:
        yield client


Clients = Callable[..., BatchClient]
