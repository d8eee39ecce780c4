"""The server's end of the socket to the engine's process, on one event loop after another."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from engine.hosts.frame_socket import FrameSocket


class ChildConnection:
    """Holds the socket of one child, and passes its frames on while an event loop reads it.

    A child may be started before there is an event loop, and outlive the one that used it. Owned by
    the thread that starts the child, then by the event loop that reads the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[dict[str, Any]], None],
        on_disconnected: Callable[[], None],
    ) -> None:
        self._on_frame = on_frame
        self._on_disconnected = on_disconnected
        # The socket while no event loop reads from it.
        self._unattached: socket.socket | None = sock
        self._frame_socket: FrameSocket | None = None

    def attach(self) -> bool:
        """Read the socket on the running event loop; return False if one reads it already."""
        if self._unattached is None:
            return False
        self._frame_socket = FrameSocket(self._unattached, self._on_frame, self._on_disconnected)
        self._unattached = None
        return True

    def detach(self) -> None:
        """Stop reading, so that another event loop can; nothing may be running."""
        if self._frame_socket is not None:
            self._unattached = self._frame_socket.detach()
            self._frame_socket = None

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; it is dropped if the socket is closed or not attached."""
        if self._frame_socket is not None:
            self._frame_socket.send(message)

    def close(self) -> None:
        """Close the socket without calling `on_disconnected`."""
        if self._frame_socket is not None:
            self._frame_socket.close()

    def shutdown(self) -> None:
        """Let the child see the end of the stream; works without an event loop."""
        if self._frame_socket is not None:
            self._frame_socket.shutdown()
        if self._unattached is not None:
            self._unattached.close()
