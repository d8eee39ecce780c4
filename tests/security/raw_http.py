"""An attacker's HTTP client, which sends arbitrary bytes and parses the responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import h11

DEADLINE_S = 20.0
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response with its full body; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class RawConnection:
    """One TCP connection to the server under test.

    The test writes the bytes of requests. h11 parses the responses one after another, also those of
    pipelined requests.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _unparsed: bytes = field(default=b"", init=False)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises ConnectionError if the server has closed."""
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, method: str = "GET", deadline_s: float = DEADLINE_S) -> RawResponse:
        """Return the next response to a request of this method.

        Raises:
            ConnectionError: the server closed the connection before the response was complete.
            TimeoutError: the response was not complete within `deadline_s`.
        """
        parser = h11.Connection(h11.CLIENT)
        # h11 parses a response only after a request, and the test may not have sent a valid one.
        parser.send(h11.Request(method=method, target="/", headers=[("host", "parser")]))
        parser.send(h11.EndOfMessage())
        if self._unparsed:  # b"" would mean the end of the connection
            parser.receive_data(self._unparsed)
        head: h11.Response | None = None
        body = bytearray()
        async with asyncio.timeout(deadline_s):
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    data = await self.reader.read(_READ_BYTES)
                    if not data and head is None:
                        raise ConnectionResetError("the server closed without a response")
                    parser.receive_data(data)
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
        assert head is not None
        self._unparsed = parser.trailing_data[0]
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        return RawResponse(head.status_code, headers, bytes(body))

    async def closed(self, deadline_s: float = DEADLINE_S) -> bytes:
        """Wait until the server closes the connection; return what it sent until then.

        Raises:
            TimeoutError: the connection was still open after `deadline_s`.
        """
        received = bytearray(self._unparsed)
        with suppress(ConnectionError):
            async with asyncio.timeout(deadline_s):
                while data := await self.reader.read(_READ_BYTES):
                    received += data
        return bytes(received)


@asynccontextmanager
async def raw_connection(port: int, source: str = "127.0.0.1") -> AsyncIterator[RawConnection]:
    """Open a connection from `source` to 127.0.0.1; close it at the end whatever the server did."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def request_bytes(
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (("Host", "127.0.0.1"),),
    body: bytes | None = None,
) -> bytes:
    """Return a request with exactly these headers, and a content length if there is a body."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


async def exchange(
    port: int,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (("Host", "127.0.0.1"),),
    body: bytes | None = None,
    deadline_s: float = DEADLINE_S,
) -> RawResponse:
    """Send one request on a connection of its own and return the response."""
    async with raw_connection(port) as connection:
        await connection.send(request_bytes(method, target, headers, body))
        return await connection.response(method, deadline_s)
