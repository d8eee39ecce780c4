"""Uvicorn with a graceful shutdown: limited in time, and clients learn why a stream ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from emulator.server.connection import build_protocol_class
from emulator.server.gc_tuning import GarbageCollectorTuning
from emulator.server.graceful_shutdown import GracefulShutdown
from emulator.server.startup import StartupErrorFilter
from emulator.settings.limits import ConnectionLimits

logger = logging.getLogger(__name__)

# Clients keep idle connections for up to a minute. The client should close first: a request that is
# sent while the server closes the connection fails.
_KEEP_ALIVE_S = 75
# After the drain deadline: time for responses that are ready, then for the last events of streams.
_RESPONSE_TIMEOUT_S = 1.0
_CLOSING_TIMEOUT_S = 1.0
# The resolution of the Date header, which uvicorn updates at each tick.
_TICK_S = 1.0
# TCP keep-alive: seconds of silence before the first probe, seconds between probes, number of
# probes. With these values a dead connection ends within half a minute, the default of LEASE_S.
_KEEP_ALIVE_PROBES = {
    getattr(socket, name): value
    # Not every system has all of these options.
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}


# The exit code for a setting that cannot be used, as `exit_on_setting_error` uses it.
_EXIT_SETTING_ERROR = 2


class Server(uvicorn.Server):
    """Serves until a signal, and then drains.

    After the signal no new work is started, but connections are still accepted: workers need them
    to send their results. When all work has ended, or DRAIN_S has passed, or a second signal comes,
    waiting requests are answered, streams get their last event, and the remaining connections are
    cut.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        graceful_shutdown: GracefulShutdown,
        on_listening: Callable[[str], object] = lambda url: None,
    ) -> None:
        super().__init__(config)
        self._graceful_shutdown = graceful_shutdown
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        # Set by the first signal, or if the server cannot do its work any more.
        self._stop_requested = graceful_shutdown.requested
        self._gc_tuning = GarbageCollectorTuning()

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
            if isinstance(app, StartupErrorFilter) and app.is_unusable:
                raise SystemExit(_EXIT_SETTING_ERROR) from None
            raise
        for server in self.servers:
            for sock in server.sockets:
                _enable_keep_alive_probes(sock)
        self._gc_tuning.start()
        if self.servers:
            self._on_listening(_local_url(self.servers[0].sockets[0].getsockname()))

    async def main_loop(self) -> None:
        """Wait for a signal.

        Uvicorn polls for it ten times a second, and each poll takes a core away from a model whose
        threads wait for each other.
        """
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), _TICK_S)
            if self._stop_requested.is_set():
                self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown; at the second signal, stop waiting for running work."""
        # Uvicorn's own handler would raise the signals again at the end, and the exit code would
        # not be 0.
        event = self._graceful_shutdown.force if self.should_exit else self._stop_requested
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(event.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running work, then close all connections and the application."""
        await self._graceful_shutdown.wait()
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        await _wait_for_tasks(self.server_state.tasks, _RESPONSE_TIMEOUT_S)
        for task in list(self.server_state.tasks):
            task.cancel()
        await _wait_for_tasks(self.server_state.tasks, _CLOSING_TIMEOUT_S)
        for connection in list(connections):
            _close_connection(connection)
        self._gc_tuning.close()
        await self.lifespan.shutdown()
        logger.info("stopped")


def _enable_keep_alive_probes(sock: socket.socket) -> None:
    """Make the kernel probe the connections that are accepted on a socket.

    A machine that lost its power closes no connection, and nothing is sent on a worker's long poll
    that could remain unacknowledged. Without probes the worker would keep its jobs forever.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE_PROBES.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _local_url(address: tuple[str, int]) -> str:
    """Return the URL of the server for clients on this machine."""
    host, port = ip_address(address[0]), address[1]
    if host.version == 6:
        return f"http://[{'::1' if host.is_unspecified else host}]:{port}"
    return f"http://{'127.0.0.1' if host.is_unspecified else host}:{port}"


async def _wait_for_tasks(tasks: set[asyncio.Task[None]], limit_s: float) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=limit_s)


def _close_connection(connection: Any) -> None:
    """Close a connection, and discard data that the client has not read by now."""
    transport = connection.transport
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()


def build_uvicorn_config(
    app: ASGIApp, limits: ConnectionLimits, host: str = "127.0.0.1", port: int = 0
) -> uvicorn.Config:
    """Return the uvicorn configuration for the application."""
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
        # The server is one process; do not read WEB_CONCURRENCY.
        workers=1,
    )
