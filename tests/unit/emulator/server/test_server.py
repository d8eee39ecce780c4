"""The server's listening sockets, and its errors when it cannot start."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.types import Receive, Scope, Send

from emulator.http.shutdown_state import ShutdownState
from emulator.server.graceful_shutdown import GracefulShutdown
from emulator.server.server import Server, build_uvicorn_config
from emulator.settings.limits import ConnectionLimits
from jobs import StoreUnavailable
from tests.leftovers import restored_loggers
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks, wait_until


class App:
    """An application that starts, or fails with `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if self.error is not None:
            # Starlette sends the whole traceback as the message.
            await send({"type": "lifespan.startup.failed", "message": "Traceback (most recent …"})
            raise self.error
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    # Uvicorn's configuration silences its access log.
    with restored_loggers():
        yield


def server(app: App, host: str = "127.0.0.1") -> tuple[Server, list[str]]:
    async def nothing(limit_s: float = 0) -> None:
        """Return immediately, because nothing runs."""

    urls: list[str] = []
    config = build_uvicorn_config(app, ConnectionLimits(), host)
    config.load()
    built = Server(config, GracefulShutdown(ShutdownState(), 0, nothing, nothing), urls.append)
    built.lifespan = config.lifespan_class(config)
    return built, urls


@pytest.fixture
async def listening() -> AsyncIterator[Server]:
    listener, _ = server(App())
    await listener.startup()
    yield listener
    listener.should_exit = True
    await listener.shutdown()


async def test_keep_alive_probes_are_enabled(listening: Server) -> None:
    """A machine that loses power closes no connections, so its workers' polls stay open."""
    address = listening.servers[0].sockets[0].getsockname()
    _, writer = await asyncio.open_connection(*address)
    (connection,) = await wait_until(lambda: list(listening.server_state.connections))
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    silent_s, every_s, times = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    # No longer than a worker may give no sign of life (LEASE_S).
    assert silent_s + every_s * times <= 30
    writer.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])  # noqa: S104 - which is the question
async def test_listening_url_can_be_called(host: str) -> None:
    listener, urls = server(App(), host)
    await listener.startup()
    assert urls[0].startswith("http://127.0.0.1:")
    await listener.shutdown()


async def test_unusable_database_is_reported_in_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, _ = server(App(StoreUnavailable("another server uses it")))
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit) as left:
        await listener.startup()
    assert left.value.code == 3
    assert "the server does not start: another server uses it" in caplog.messages
    assert "Traceback" not in caplog.text


async def test_unexpected_error_has_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    listener, _ = server(App(KeyError("a bug")))
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit):
        await listener.startup()
    assert "Traceback" in caplog.text


async def test_signal_is_handled_immediately(listening: Server, clock: VirtualClock) -> None:
    running = asyncio.create_task(listening.main_loop())
    await wait_until(lambda: listening.server_state.default_headers)
    signaled_at_s = clock.elapsed_s
    listening.handle_exit(signal.SIGTERM, None)
    await running
    assert clock.elapsed_s == signaled_at_s


async def test_signal_before_the_wait_is_handled(
    listening: Server, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    ticks = 0

    async def on_tick(counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            # The signal arrives between the check and the wait.
            listening.handle_exit(signal.SIGTERM, None)
            return False
        return listening.should_exit

    monkeypatch.setattr(listening, "on_tick", on_tick)
    await listening.main_loop()
    assert (ticks, clock.elapsed_s) == (2, 0)


async def test_second_signal_forces_the_shutdown(listening: Server) -> None:
    listening.handle_exit(signal.SIGTERM, None)
    await run_ready_tasks()
    force = listening._graceful_shutdown.force
    assert not force.is_set()
    listening.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(30):
        await force.wait()


async def test_date_header_is_updated(listening: Server, clock: VirtualClock) -> None:
    running = asyncio.create_task(listening.main_loop())
    first = await wait_until(lambda: listening.server_state.default_headers)
    assert dict(first)[b"date"].endswith(b"GMT")
    await wait_until(lambda: listening.server_state.default_headers is not first)
    listening.handle_exit(signal.SIGTERM, None)
    await running


async def test_collector_is_tuned_while_the_server_listens() -> None:
    before = gc.get_threshold()
    listener, _ = server(App())
    await listener.startup()
    assert gc.get_threshold() != before
    listener.should_exit = True
    await listener.shutdown()
    assert gc.get_threshold() == before
