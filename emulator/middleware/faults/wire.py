"""Send a response's head and body with the faults of HTTP and of the connection."""

from __future__ import annotations

import asyncio
import re
import zlib
from http import HTTPStatus
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from emulator.http.disconnect import ABORT_EXTENSION, abort_connection, wait_disconnected
from emulator.middleware.faults.parser import Faults
from emulator.middleware.faults.steps import WRITE_PAUSE_S

_EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"
# How long a client may keep a connection that the server has closed in its direction.
_HALF_CLOSE_TIMEOUT_S = 60.0
# A zlib stream with the header of gzip.
_GZIP_WINDOW_BITS = 31
_ZERO_WEIGHT = re.compile(rb"q=0(\.0*)?")


class FaultyWire:
    """Sends one response; `is_ended` is true when nothing more can be sent.

    With `until-close` and `content-length` the response is written to the connection itself, for
    the server would refuse to send it. Other servers than ours do not support that: then these
    faults have no effect.
    """

    def __init__(self, faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        self._faults = faults
        self._scope = scope
        self._receive = receive
        self._send = send
        self.is_ended = False
        self._connection: dict[str, Any] | None = scope.get("extensions", {}).get(ABORT_EXTENSION)
        is_raw = bool(faults.keys() & {"until-close", "content-length"})
        self._is_raw = is_raw and self._connection is not None
        self._gzip: Any = None

    async def start(self, message: Message) -> None:
        """Send the head."""
        headers = MutableHeaders(raw=message["headers"])
        if "wrong-content-type" in self._faults:
            headers["content-type"] = "text/html; charset=utf-8"
        if "no-content-type" in self._faults:
            del headers["content-type"]
        if "false-gzip" in self._faults:
            headers["content-encoding"] = "gzip"
        if "gzip" in self._faults and _accepts_gzip(self._scope):
            headers["content-encoding"] = "gzip"
            del headers["content-length"]
            self._gzip = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        # RFC 9110, 15.2: a client of HTTP/1.0 must not get a 1xx response.
        if "early-hints" in self._faults and self._scope.get("http_version") != "1.0":
            self.write_raw(_EARLY_HINTS)
        if not self._is_raw:
            await self._send(message)
            return
        del headers["content-length"]
        headers["connection"] = "close"
        if "content-length" in self._faults:
            headers["content-length"] = f"{self._faults['content-length']:g}"
        self.write_raw(_encode_head(message["status"], headers))

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        await self._write_body(data)

    async def complete(self) -> None:
        """End the body."""
        self.is_ended = True
        if self._gzip is not None:
            await self._write_body(self._gzip.flush(zlib.Z_FINISH))
        if self._is_raw and self._connection is not None:
            self._connection["close"]()
            await wait_disconnected(self._receive)
        else:
            await self._send({"type": "http.response.body", "body": b""})

    async def cut(self, *, reset: bool = False) -> bool:
        """Cut the connection; return False if the server does not support that."""
        # The event loop may write only in its next turn, and an abort discards unwritten bytes.
        await asyncio.sleep(WRITE_PAUSE_S)
        self.is_ended = await abort_connection(self._scope, self._receive, reset=reset)
        return self.is_ended

    async def half_close(self) -> bool:
        """Close the server's direction, and the connection when the client has closed its own."""
        if self._connection is None:
            return False
        self.is_ended = True
        self._connection["write_eof"]()
        try:
            async with asyncio.timeout(_HALF_CLOSE_TIMEOUT_S):
                await wait_disconnected(self._receive)
        except TimeoutError:
            await abort_connection(self._scope, self._receive)
        return True

    def write_raw(self, data: bytes) -> None:
        """Write bytes to the connection itself, outside of any HTTP chunk."""
        if self._connection is not None:
            self._connection["write"](data)

    async def _write_body(self, data: bytes) -> None:
        if self._is_raw:
            self.write_raw(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _accepts_gzip(scope: Scope) -> bool:
    """Return whether a request accepts gzip: a weight of 0 refuses it (RFC 9110, 12.5.3)."""
    values = [value for name, value in scope["headers"] if name == b"accept-encoding"]
    for coding in b",".join(values).lower().split(b","):
        name, _, weight = coding.replace(b" ", b"").partition(b";")
        if name in (b"gzip", b"x-gzip"):
            return _ZERO_WEIGHT.fullmatch(weight) is None
    return False


def _encode_head(status: int, headers: MutableHeaders) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    lines += [name + b": " + value for name, value in headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"
