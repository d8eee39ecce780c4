"""A fake connection with ASGI's receive and send functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any

import pytest
from starlette.requests import Request


class FakeConnection:
    """A client's side of a connection: the body it sends, what it receives, when it disconnects.

    `send` blocks while `reading` is not set, as uvicorn's does above its high-water mark, and sets
    `blocked`.
    """

    def __init__(self, body: tuple[bytes, ...] = (), *, leaves_in_body: bool = False) -> None:
        self._incoming: list[dict[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": True} for part in body
        ]
        if leaves_in_body:
            self._incoming.append({"type": "http.disconnect"})
        else:
            self._incoming.append({"type": "http.request", "body": b"", "more_body": False})
        self.left = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.blocked = asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self.received = 0

    async def receive(self) -> dict[str, Any]:
        if self._incoming:
            self.received += 1
            return self._incoming.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if not self.reading.is_set():
            self.blocked.set()
            await self.reading.wait()
        self.sent.append(message)

    def request(self, **headers: str) -> Request:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return Request({"type": "http", "method": "POST", "headers": raw}, self.receive)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.fixture
def connection() -> Callable[..., FakeConnection]:
    return FakeConnection


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """Fail a test that leaves a task behind."""
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
