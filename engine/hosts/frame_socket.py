"""A socket that carries frames, read and written by the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from engine.hosts.frames import build_decoder, encode

# Bytes read in one iteration of the loop; more would delay everything else on the loop.
_READ_BYTES = 16 * 1024


class FrameSocket:
    """Reads and writes frames without blocking the event loop, which owns it.

    Reading on the loop itself saves the hop from a reader thread to the loop, the most expensive
    one on a token's way to its client. Bytes that the socket does not take are kept and written
    later. They are bounded by the number of slots, since only admitted requests are sent.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Any], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._decoder = build_decoder()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._unsent = bytearray()
        self._is_flush_scheduled = False
        self._on_message = on_message
        self._on_closed = on_closed
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, message: Any) -> None:
        """Send a message, or keep it until the socket takes it; after `close` it is dropped."""
        if self._sock.fileno() < 0:
            return
        self._unsent += encode(message)
        if not self._is_flush_scheduled:
            # Once per iteration of the loop, so that messages sent in between share one write.
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close the socket without calling `on_closed`; does nothing the second time."""
        fileno = self._sock.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
            self._sock.close()

    def detach(self) -> socket.socket:
        """Stop reading and return the socket, for another loop; no message may be in progress."""
        fileno = self._sock.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
        return self._sock

    def shutdown(self) -> None:
        """Let the other side see the end of the stream; works without an event loop."""
        if self._sock.fileno() >= 0:
            self._sock.shutdown(socket.SHUT_RDWR)

    def _on_readable(self) -> None:
        try:
            size = self._sock.recv_into(self._buffer)
            for message in self._decoder.feed(self._buffer[:size]):
                self._on_message(message)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            size = 0
        if not size:
            self._on_disconnected()

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._sock.fileno() < 0 or not self._unsent:
            return
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._on_disconnected()
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _on_disconnected(self) -> None:
        if self._sock.fileno() >= 0:
            self.close()
            self._on_closed()
