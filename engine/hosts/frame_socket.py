"""A socket of frames, served by the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from engine.hosts.frames import FrameDecoder, encode

# What one turn of the loop takes; more would keep everybody else from theirs.
_READ_BYTES = 16 * 1024


class FrameSocket:
    """Reads frames as the loop finds them and writes without ever blocking it.

    Reading on the loop itself, instead of in a thread, saves the hop that costs most between a
    token and its client. What the socket does not take is kept and written when it does; it is
    bounded by what may run at once, since only admitted requests are sent. Owned by the loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Any], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._unsent = bytearray()
        self._flushing = False
        self._on_message = on_message
        self._on_closed = on_closed
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Any) -> None:
        """Send a message, or keep it until the socket takes it; after `close` it goes nowhere."""
        if self._sock.fileno() < 0:
            return
        self._unsent += encode(message)
        if not self._flushing:
            # Once a turn: what is sent in between goes along.
            self._flushing = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close the socket without calling back; harmless the second time."""
        fileno = self._sock.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
            self._sock.close()

    def detach(self) -> socket.socket:
        """Stop reading and return the socket, for another loop; between messages only."""
        fileno = self._sock.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
        return self._sock

    def hang_up(self) -> None:
        """Let the other side see the end, where there is no loop any more to close with."""
        if self._sock.fileno() >= 0:
            self._sock.shutdown(socket.SHUT_RDWR)

    def _readable(self) -> None:
        try:
            size = self._sock.recv_into(self._buffer)
            for message in self._decoder.feed(self._buffer[:size]):
                self._on_message(message)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            size = 0
        if not size:
            self._lost()

    def _flush(self) -> None:
        self._flushing = False
        if self._sock.fileno() < 0 or not self._unsent:
            return
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost()
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _lost(self) -> None:
        if self._sock.fileno() >= 0:
            self.close()
            self._on_closed()
