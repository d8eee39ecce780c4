"""Detect that a client has closed its connection while nothing is read from it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_EVENTS = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLET", 0)


class HangupWatch:
    """Calls back when the other side of a socket has closed or reset it.

    Event loops detect that by reading. A connection whose client has sent too much is not read
    from, so the kernel is asked to report only the close (EPOLLRDHUP). On systems without epoll the
    close is detected when reading continues.

    Owned by the event loop. Holds no file descriptor while no socket is watched.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}

    def add(self, fd: int, on_hangup: Callable[[], object]) -> None:
        """Watch a socket until `remove`."""
        if not hasattr(select, "epoll"):
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._call_back)
        self._callbacks[fd] = on_hangup
        self._epoll.register(fd, _EVENTS)

    def remove(self, fd: int) -> None:
        """Stop watching a socket; must be called before the socket is closed."""
        if self._epoll is None or self._callbacks.pop(fd, None) is None:
            return
        self._epoll.unregister(fd)
        if not self._callbacks:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _call_back(self) -> None:
        if self._epoll is None:
            return
        for fd, _ in self._epoll.poll(0):
            on_hangup = self._callbacks.get(fd)
            if on_hangup is not None:
                on_hangup()
