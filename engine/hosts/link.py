"""A socket of frames, served by the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from engine.hosts.frames import FrameDecoder, encode

_READ_BYTES = 256 * 1024


class Link:
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
        self._unsent = bytearray()
        self._on_message = on_message
        self._on_closed = on_closed
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Any) -> None:
        """Send a message, or keep it until the socket takes it; after `close` it goes nowhere."""
        if self._sock.fileno() < 0:
            return
        self._unsent += encode(message)
        self._flush()

    def close(self) -> None:
        """Close the socket without calling back; harmless the second time."""
        fileno = self._sock.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
            self._sock.close()

    def hang_up(self) -> None:
        """Let the other side see the end, where there is no loop any more to close with."""
        if self._sock.fileno() >= 0:
            self._sock.shutdown(socket.SHUT_RDWR)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
            for message in self._decoder.feed(data):
                self._on_message(message)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._lost()

    def _flush(self) -> None:
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
