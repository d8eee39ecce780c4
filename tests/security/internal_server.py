"""A server that only the server under test can reach, and which records the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_HEAD_END = b"\r\n\r\n"
_BLOCK = b"x" * 65_536


@dataclass(slots=True)
class InternalServer:
    """Answers every request with the same bytes, then with `endless_bytes` more, and closes."""

    port: int
    answer: bytes
    endless_bytes: int = 0
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    sent_bytes: int = 0
    open: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.open[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            self.heads.append(await reader.readuntil(_HEAD_END))
            if b"100-continue" in self.heads[-1].lower():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
            while self.sent_bytes < self.endless_bytes:
                writer.write(_BLOCK)
                await writer.drain()
                self.sent_bytes += len(_BLOCK)
            writer.write_eof()
            # Read the rest of the request, because closing now would reset the connection.
            while await reader.read(65_536):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        del self.open[task]


@asynccontextmanager
async def internal_server(
    answer: bytes, *, endless_bytes: int = 0, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[InternalServer]:
    """Listen on a loopback address; port 0 is any free one."""
    server = await asyncio.start_server(lambda r, w: internal.serve(r, w), host, port)
    internal = InternalServer(server.sockets[0].getsockname()[1], answer, endless_bytes)
    try:
        yield internal
    finally:
        server.close()
        for writer in internal.open.values():
            writer.transport.abort()
        await asyncio.gather(*internal.open)
