"""HTTP/1.1 connections with limits on the time and memory that a client can use."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from emulator.http.body_budget import BODY_EXTENSION, BodyBudget, ReceivedBody
from emulator.http.disconnect import ABORT_EXTENSION
from emulator.http.hangup_watch import HangupWatch
from emulator.http.library_internals import UvicornConnection
from emulator.server.chunked import ChunkedBody, ChunkedError
from emulator.server.connection_counts import ConnectionCounts, counted_address
from emulator.server.request_head import BadRequest, check_headers, check_length, split_target
from emulator.settings.limits import ConnectionLimits
from handler.errors import ErrorInfo, ErrorMapping

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, WWWScope

logger = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 65_536
# Requests that a client sends before an earlier one has been answered.
_MAX_PIPELINED_BYTES = 65_536
_HEAD_END = b"\r\n\r\n"
# Time for a client to read an error response. After an immediate close the kernel would discard the
# response, because the rest of the request has not been read.
_LINGER_S = 2.0
_MAX_LINGERING = 128
# Time for the rest of a body whose request has been answered; nginx's `lingering_time`.
_REST_OF_BODY_S = 30.0
_RETRY_AFTER_S = 5
_WARNING_INTERVAL_S = 60.0
_INVALID = "the request is not valid HTTP/1.1"


class _Shared:
    """State that all connections of one server share. Owned by the event loop."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.counts = ConnectionCounts(limits.max_connections, limits.max_connections_per_address)
        self.budget = BodyBudget(
            limits.max_pending_body_bytes,
            limits.max_pending_body_bytes_per_address,
            limits.max_json_values,
        )
        self.watch = HangupWatch()
        self.lingering = 0
        self._warned_at = float("-inf")

    def warn(self, message: str) -> None:
        """Log a warning, at most once a minute: an attacker could fill the log."""
        if time.monotonic() - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = time.monotonic()
            logger.warning("%s (logged once a minute)", message)


class _Flow(FlowControl):
    """Uvicorn's flow control, whose `resume_reading` has no effect while reading is held.

    Uvicorn calls it whenever a request waits for its body.
    """

    is_held = False

    def resume_reading(self) -> None:
        """Resume reading, unless the client has pipelined too many requests."""
        if not self.is_held:
            super().resume_reading()


class TimeoutHttpProtocol(UvicornConnection):
    """Uvicorn's protocol with limits.

    - The parser (llhttp) gets the head of one request at a time. This class finds the end of the
      body itself, so that the next request is parsed only after this one has been answered.
    - One timer runs until the client has sent a head, and then its body. Another one runs while the
      client does not read. When one expires, the connection is closed.
    - Requests that RFC 9112 requires to be rejected get a JSON error, and the connection is closed.
    """

    # Uvicorn creates the connections, so each server has its own subclass that sets this.
    shared = _Shared(ConnectionLimits())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = self.shared.limits
        self._address = ""
        self._is_counted = False
        # Timers: the client sends a head or body; the client reads; the client reads the error.
        self._incoming: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        # The last bytes of the head so far: its end may be split between two reads.
        self._head_tail = b""
        self._body: ChunkedBody | int = 0
        self._needs_parser = False
        self._received: ReceivedBody
        self._pipelined = bytearray()
        self._pipelined_count: ReceivedBody
        self._flow: _Flow

    # -- the transport's events ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for the first head, or reject the connection if there are too many."""
        # The transports of a TCP server can be written to, so the cast is safe.
        super().connection_made(cast("asyncio.Transport", transport))
        self.flow = self._flow = _Flow(self.transport)
        self._address = counted_address(self.client[0] if self.client else "")
        self._pipelined_count = ReceivedBody(self.shared.budget, self._address)
        if self.shared.counts.open(self._address):
            self._is_counted = True
            self._wait_for_head()
            return
        self.shared.warn(f"refused a connection from {self._address}: too many are open")
        self._refuse(
            "too many connections are open (MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS)", 503
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and release what the connection holds."""
        if self._is_counted:
            self.shared.counts.close(self._address)
            self._is_counted = False
        if self._lingering is not None:
            self._lingering.cancel()
            self.shared.lingering -= 1
        _cancel(self._incoming)
        _cancel(self._unread)
        self._clear_pipelined()
        # Uvicorn does this only if the client closed without an error.
        self.stop_keep_alive_timer()
        super().connection_lost(exc)
        self._drop_body()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        if self._lingering is None and not self.transport.is_closing():
            self._process(data)

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer: the client has read enough."""
        _cancel(self._unread)
        super().resume_writing()

    # -- received bytes --------------------------------------------------------------------------

    def _process(self, data: bytes) -> None:
        while data and self._lingering is None and not self.transport.is_closing():
            if self._is_answering():
                self._add_pipelined(data)
                return
            data = self._process_head(data) if self._in_head else self._process_body(data)
        if not self._in_head and self._incoming is None and self._lingering is None:
            # Started only now, because most bodies arrive with their heads and need no timer.
            self._incoming = self.loop.call_later(self.limits.body_s, self._time_out)

    def _is_answering(self) -> bool:
        """Return whether a complete request has been received and not been answered yet."""
        return self._in_head and not self.is_response_complete

    def _process_head(self, data: bytes) -> bytes:
        """Parse bytes of a head; return those behind its end."""
        if not self._head_bytes:
            # Some clients send an empty line behind a body (RFC 9112, section 2.2).
            data = data.lstrip(b"\r\n")
            if not data:
                return b""
            # Not before: empty lines must not keep an idle connection open.
            self.stop_keep_alive_timer()
        at = (self._head_tail + data).find(_HEAD_END)
        end = len(data) if at < 0 else at + len(_HEAD_END) - len(self._head_tail)
        is_too_large = self._head_bytes + end > _MAX_HEAD_BYTES
        # A head that is too large is parsed up to the limit: the parser may find a more precise
        # reason to reject it, such as a long target.
        piece = data[: min(end, _MAX_HEAD_BYTES - self._head_bytes)]
        self._head_bytes += len(piece)
        self._head_tail = (self._head_tail + piece)[1 - len(_HEAD_END) :]
        if not self._parse_head(piece):
            return b""
        if is_too_large:
            self._refuse(f"the request head is larger than {_MAX_HEAD_BYTES} bytes", 431)
        elif self._in_head and at >= 0:
            self._refuse(_INVALID)
        elif self._in_head:
            if self._incoming is None:
                self._wait_for_head()
        elif not self._body:
            self._end_message()
        return data[end:]

    def _parse_head(self, piece: bytes) -> bool:
        """Parse a part of a head. Reject the request and return False if it is invalid."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # The client only offers another protocol; the request is served as HTTP/1.1.
            self._needs_parser = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, BadRequest):
                self._refuse(str(cause), cause.status)
            else:
                self._refuse(f"{_INVALID}: {error}" if str(error) else _INVALID)
            return False
        return True

    def _process_body(self, data: bytes) -> bytes:
        """Process bytes of a body; return those behind its end."""
        if isinstance(self._body, ChunkedBody):
            try:
                content, rest = self._body.feed(data)
            except ChunkedError as error:
                self._refuse(str(error))
                return b""
            is_complete = self._body.is_complete
        else:
            content, rest = data[: self._body], data[self._body :]
            self._body -= len(content)
            is_complete = not self._body
        if content and not self.is_response_complete:
            if not self._received.add(len(content)):
                self.shared.warn("refused a request body: too many are being received")
                self._refuse(
                    "too many request bodies are being received at once (MAX_PENDING_BODY_MB, "
                    "MAX_PENDING_BODY_MB_PER_ADDRESS)",
                    503,
                )
                return b""
            self.on_body(content)
        if is_complete:
            self._end_message()
        return rest

    def _end_message(self) -> None:
        """Finish the current request; the next bytes belong to another one."""
        self._stop_timer()
        self._in_head = True
        self._head_bytes = 0
        self._head_tail = b""
        super().on_message_complete()
        if self._needs_parser:
            # The old parser still expects the body, or another protocol.
            self.parser = httptools.HttpRequestParser(self)
            self._needs_parser = False

    # -- pipelined requests ----------------------------------------------------------------------

    def _add_pipelined(self, data: bytes) -> None:
        """Store requests for later; stop reading above _MAX_PIPELINED_BYTES.

        Below that limit reading continues, because only reading shows that the client has
        disconnected.
        """
        if not self._pipelined_count.add(len(data)):
            self.shared.warn("closed a connection: too many requests were sent ahead")
            self.transport.abort()
            return
        self._pipelined += data
        if len(self._pipelined) > _MAX_PIPELINED_BYTES and not self._flow.is_held:
            self.flow.pause_reading()
            self._flow.is_held = True
            self.shared.watch.add(self._fd(), self.transport.abort)

    def _clear_pipelined(self) -> bytes:
        """Return and forget the pipelined requests; allow reading again."""
        data = bytes(self._pipelined)
        self._pipelined.clear()
        self._pipelined_count.release()
        if self._flow.is_held:
            self.shared.watch.remove(self._fd())
            self._flow.is_held = False
        return data

    def _fd(self) -> int:
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    # -- the parser's events ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Prepare for a request."""
        super().on_message_begin()
        self._received = ReceivedBody(self.shared.budget, self._address)
        self.scope["extensions"] = {
            # Methods of this object would form a cycle with the scope.
            ABORT_EXTENSION: {
                "abort": self.transport.abort,
                "reset": partial(_reset, self.transport),
                "close": self.transport.close,
                "write": self.transport.write,
                "write_eof": self.transport.write_eof,
            },
            BODY_EXTENSION: {"body": self._received},
        }

    def on_url(self, url: bytes) -> None:
        """Add a part of the target; a target that is too long is rejected before its end."""
        super().on_url(url)
        check_length(self.url)

    def on_headers_complete(self) -> None:
        """Check the head, determine how the body ends, and start the application."""
        method = self.parser.get_method().decode("ascii")
        host, length = check_headers(self.parser.get_http_version(), self.headers)
        target_host, self.url = split_target(method, self.url)
        if target_host is not None and target_host != host:
            # The host of the target takes precedence (RFC 9112, section 3.2.2).
            self.headers[:] = [each for each in self.headers if each[0] != b"host"]
            self.headers.append((b"host", target_host))
        if self.url.startswith(b"//"):
            # Uvicorn's way to split a target would read the first segment as a host.
            self.url = b"http://host" + self.url
        self._body = ChunkedBody() if length is None else length
        self._needs_parser = bool(self._body)
        # This starts the application, unless the target is malformed.
        super().on_headers_complete()
        self._in_head = False
        self._stop_timer()

    def on_message_complete(self) -> None:
        """Do nothing: the parser does not see the bodies. See `_end_message`."""

    def on_response_complete(self) -> None:
        """Process pipelined requests, or wait for the next one."""
        if not self._in_head:
            # The response was sent before the end of the body.
            self._stop_timer()
            limit_s = min(_REST_OF_BODY_S, self.limits.body_s)
            self._incoming = self.loop.call_later(limit_s, self._time_out)
        self._drop_body()
        data = self._clear_pipelined() if self._pipelined else b""
        super().on_response_complete()
        if data and not self.transport.is_closing():
            self._process(data)

    # -- the application -------------------------------------------------------------------------

    def wrap_app(self, app: ASGI3Application) -> ASGI3Application:
        """Count the request's body in the budget until the application returns.

        Otherwise a client could send a body and disconnect, and send the next one while the
        application still holds the first.
        """
        return partial(_run_and_release, app, self._received)

    def _drop_body(self) -> None:
        if size_bytes := self.drop_body():
            self._received.release(size_bytes)

    # -- closing ---------------------------------------------------------------------------------

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its client has not read the last response."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, message: str, status: int = 400) -> None:
        """Answer with an error instead of serving the request, and close the connection."""
        logger.info("refused a request of %s: %s", self.client, message)
        if not self._in_head and self.is_response_started:
            # The client would read the error as a part of that response, or as the next response.
            self.transport.abort()
            return
        self.abandon_request()
        if self.shared.lingering >= _MAX_LINGERING:
            self.transport.abort()
            return
        self._stop_timer()
        self._drop_body()
        self.transport.write(_error_bytes(message, status))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.shared.lingering += 1
        self._lingering = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _wait_for_head(self) -> None:
        self._incoming = self.loop.call_later(self.limits.head_s, self._time_out)

    def _stop_timer(self) -> None:
        _cancel(self._incoming)
        self._incoming = None

    def _time_out(self) -> None:
        self._incoming = None
        self.transport.abort()


async def _run_and_release(
    app: ASGI3Application,
    received: ReceivedBody,
    scope: WWWScope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    try:
        await app(scope, receive, send)
    finally:
        received.release()


def _reset(transport: asyncio.Transport) -> None:
    """Cut a connection with a TCP RST; unsent bytes are discarded."""
    if not transport.is_closing():
        # With a linger time of 0, closing the socket resets the connection.
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    transport.abort()


def _error_bytes(message: str, status: int) -> bytes:
    """Return a complete error response that closes the connection."""
    is_busy = status == 503
    kind = "service_unavailable_error" if is_busy else "invalid_request_error"
    body = orjson.dumps(ErrorInfo(message, ErrorMapping(status, kind)).openai_error())
    retry = b"retry-after: %d\r\n" % _RETRY_AFTER_S if is_busy else b""
    return (
        STATUS_LINE[status]
        + b"content-type: application/json\r\nconnection: close\r\n"
        + retry
        + b"content-length: %d\r\n\r\n" % len(body)
        + body
    )


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def build_protocol_class(limits: ConnectionLimits) -> type[TimeoutHttpProtocol]:
    """Return the protocol class of a server with these limits."""
    return type("LimitedConnection", (TimeoutHttpProtocol,), {"shared": _Shared(limits)})
