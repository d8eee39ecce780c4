"""Uvicorn, ended in good order: by a signal, within a time, without a cut-off that is not told."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from emulator.config import ConnectionLimits
from emulator.server.connection import build_protocol_class
from emulator.server.gc_tuning import GarbageCollectorTuning
from emulator.server.graceful_shutdown import GracefulShutdown
from emulator.server.startup import StartupErrorFilter

logger = logging.getLogger(__name__)

# Clients keep idle connections for up to a minute; whoever lets go first should be they, or the
# next request runs into the closing.
_KEEP_ALIVE_S = 75
# For answers that are ready when the time is up, then for streams to say that they end here.
_ANSWER_S = 1.0
_FAREWELL_S = 1.0
_MOST_FILES = 65_536
# As exact as the date in an answer's headers.
_TICK_S = 1.0
# Asked for the first time after so many seconds of silence, then so often, so many times: with
# these a connection ends within half a minute, which is how long a lease is.
_PROBES = {
    getattr(socket, name): value
    # Each system has its own names, and some only the switch.
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}


# The exit code for a setting that cannot be used, as `leave` has it.
_REFUSED = 2


class Server(uvicorn.Server):
    """Listens until a signal, and a little longer.

    From the signal on nothing new is begun, while connections are still taken: workers need them to
    hand in what they have done. When all is done, or DRAIN_S is over, or a second signal comes,
    what still waits is answered, streams are told that they end here, and the rest is cut off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        ending: GracefulShutdown,
        on_listening: Callable[[str], object] = lambda url: None,
    ) -> None:
        super().__init__(config)
        self._ending = ending
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        # A signal came, or the application has no use any more.
        self._asked = ending.requested
        self._garbage = GarbageCollectorTuning()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen.

        Raises SystemExit with code 2 if the settings name something that cannot be used, and with
        uvicorn's code 3 if the application does not start for another reason.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        except SystemExit:
            app = self.config.app
            if isinstance(app, StartupErrorFilter) and app.is_refused:
                raise SystemExit(_REFUSED) from None
            raise
        for server in self.servers:
            for sock in server.sockets:
                _probe(sock)
        self._garbage.start()
        if self.servers:
            self._on_listening(_url(self.servers[0].sockets[0].getsockname()))

    async def main_loop(self) -> None:
        """Wait for a signal.

        Uvicorn looks ten times a second whether there was one, and each look takes one of the
        cores from a model whose threads wait for each other.
        """
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _TICK_S)
            if self._asked.is_set():
                self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end; at the second signal, hurry."""
        # Uvicorn would raise the signals again at its end, and the exit code would not be 0.
        said = self._ending.force if self.should_exit else self._asked
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(said.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in good order."""
        await self._ending.wait()
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        await _finish(self.server_state.tasks, _ANSWER_S)
        for task in list(self.server_state.tasks):
            task.cancel()
        await _finish(self.server_state.tasks, _FAREWELL_S)
        for connection in list(connections):
            _cut(connection)
        self._garbage.close()
        await self.lifespan.shutdown()
        logger.info("stopped")


def _probe(sock: socket.socket) -> None:
    """Have the kernel ask now and then whether the other side is there, of all it accepts here.

    One that lost its power says no goodbye, and a worker's long-poll is sent nothing that could go
    unanswered: it would have its jobs for ever.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _url(address: tuple[str, int]) -> str:
    """Return where the server is reached from this machine."""
    host, port = ip_address(address[0]), address[1]
    if host.version == 6:
        return f"http://[{'::1' if host.is_unspecified else host}]:{port}"
    return f"http://{'127.0.0.1' if host.is_unspecified else host}:{port}"


async def _finish(tasks: set[asyncio.Task[None]], limit_s: float) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=limit_s)


def _cut(connection: Any) -> None:
    """Close a connection; what its client has not read by now is not worth a hanging end."""
    transport = connection.transport
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()


def build_uvicorn_config(
    app: ASGIApp, limits: ConnectionLimits, host: str = "127.0.0.1", port: int = 0
) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    return uvicorn.Config(
        StartupErrorFilter(app),
        interface="asgi3",
        host=host,
        port=port,
        http=build_protocol_class(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        # One by nature, whatever WEB_CONCURRENCY says to other servers.
        workers=1,
    )


def raise_open_files_limit() -> None:
    """Let this process have as many connections as the machine lets it; shells give it 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
