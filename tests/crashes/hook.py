"""A receiver of webhooks, which responds 200 and keeps the payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import orjson


class WebhookReceiver:
    """Keeps the payloads of each job, in order of arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.received: dict[str, list[dict[str, Any]]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        receiver = cls()
        server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0)
        receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server:
            yield receiver

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                job = orjson.loads(await reader.readexactly(length))
                self.received.setdefault(job["id"], []).append(job)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            # The sender may be killed in the middle of a request.
            pass
        finally:
            writer.close()
