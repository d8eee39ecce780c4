"""A connection that cannot be held for ever by a client that is slow, silent or does not read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from emulator.disconnect import DROP

# Of one request; what one network read brings more than that is still taken.
_HEAD_BYTES = 65_536
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long a client may take, in seconds.

    `head` until a request's head is there, from the connection's beginning or the head's own;
    `body` from there to the body's end; `read` until it reads again of what it is sent.
    """

    head_s: float = 10.0
    body_s: float = 300.0
    read_s: float = 60.0


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with an end to its patience: it knows keep-alive's alone.

    One timer, for what is being waited for from the client: its head, then its body. Another one
    runs while more is to be sent than the client has read. Whoever lets one run out is cut off.
    """

    # Set by a class of its own for each server: uvicorn makes the connections.
    limits = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._incoming: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first head."""
        # What a TCP server is given is one that can be written to.
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        _stop(self._incoming)
        _stop(self._unread)
        # Uvicorn does that only for who says goodbye; for who does not, it kept all until then.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._incoming is not None or self.transport.is_closing():
            return
        elif not self._in_head:
            self._incoming = self.loop.call_later(self.limits.body_s, self._out_of_time)
        elif self._head_bytes:
            # Keep-alive's own timer has stopped at this first byte.
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """Prepare for a request; its client may be let go of without an answer."""
        super().on_message_begin()
        self.scope["extensions"] = {DROP: {"abort": self.transport.abort}}
        if self._incoming is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """The body is next; most have come with their head."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The client has said all it had to say."""
        self._stop_waiting()
        self._in_head = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        _stop(self._unread)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also where its client has not read the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_head(self) -> None:
        self._incoming = self.loop.call_later(self.limits.head_s, self._out_of_time)

    def _stop_waiting(self) -> None:
        _stop(self._incoming)
        self._incoming = None

    def _out_of_time(self) -> None:
        self._incoming = None
        if self._in_head and self.cycle is not None and not self.cycle.response_complete:
            # It is the next request that is late, and the one before is still being answered.
            self._wait_for_head()
        else:
            self.transport.abort()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """Return the protocol with these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
