"""A streamed response that is read and discarded until it is disconnected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.client import HOST, WrongAnswer, request_bytes

_EVENT = b"data: "
_START_S = 30.0


class _Discarding(asyncio.Protocol):
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # Times are nanoseconds of CLOCK_MONOTONIC, as in the other modules.
        self.first: asyncio.Future[int] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        if not self.first.done() and _EVENT in data:
            self.first.set_result(time.monotonic_ns())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.first.done():
            self.first.set_exception(WrongAnswer("the stream ended before its first event"))


class OpenStream:
    """One stream, owned by the event loop that started it."""

    def __init__(self, transport: asyncio.Transport, reader: _Discarding) -> None:
        self._transport = transport
        self._reader = reader

    @classmethod
    async def ask(cls, port: int, path: str, body: Mapping[str, Any]) -> OpenStream:
        """Start a stream and return immediately; the request may have to wait in the queue."""
        loop = asyncio.get_running_loop()
        transport, reader = await loop.create_connection(_Discarding, HOST, port)
        transport.write(request_bytes(path, body))
        return cls(transport, reader)

    async def first_event(self) -> int:
        """Wait for the first event; return when it was read. Raises WrongAnswer, TimeoutError."""
        async with asyncio.timeout(_START_S):
            return await asyncio.shield(self._reader.first)

    def close(self) -> int:
        """Disconnect immediately; return the time."""
        self._transport.abort()
        return time.monotonic_ns()
