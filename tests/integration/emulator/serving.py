"""Serves the application on a port from the test's own loop, and reads raw responses."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from unittest.mock import patch

import httpx2
import uvicorn
from starlette.applications import Starlette

from emulator.app import create_app
from emulator.server.graceful_shutdown import GracefulShutdown
from emulator.server.server import build_uvicorn_config
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup.components import Components, build_components
from engine import Engine
from handler.settings import unused_settings
from handler.settings.engine_configs import build_engine
from tests.integration.emulator.described_bodies import AcceptedBodies
from tests.leftovers import restored_logger
from tests.unit.emulator.events import DEADLINE_S, EventRecorder
from tests.waiting import wait_until

_SSL_WITHOUT_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Server:
    """A running server and the engine behind it."""

    port: int
    engine: Engine
    uvicorn: uvicorn.Server
    app: Starlette
    components: Components
    events: EventRecorder = field(default_factory=EventRecorder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def graceful_shutdown(self) -> GracefulShutdown:
        """The shutdown, which only a test starts here."""
        return self.components.graceful_shutdown

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks of the requests in progress."""
        return self.uvicorn.server_state.tasks

    def client(self, *, sends_anything: bool = False, **options: Any) -> httpx2.AsyncClient:
        """Return a client that checks that accepted bodies are as /openapi.json describes them.

        Not so with `sends_anything`: the server ignores some wrong values without any effect.
        """
        if sends_anything:
            return http_client(self.url, **options)
        bodies = AcceptedBodies(self.app, self.components.settings)
        return http_client(self.url, event_hooks={"response": [bodies.check]}, **options)

    @property
    def connections(self) -> set[Any]:
        """The open connections, as uvicorn's protocols."""
        return self.uvicorn.server_state.connections

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that no event signals; check it in each turn of the event loop."""
        await wait_until(condition, DEADLINE_S, gap_s=0)

    async def wait_until_no_requests(self) -> None:
        """Wait until no request is in progress."""
        async with asyncio.timeout(DEADLINE_S):
            while self.tasks:
                await asyncio.wait(set(self.tasks))

    async def wait_until_idle(self) -> None:
        """Wait until no request is in progress and all slots are free."""
        await self.wait_until_no_requests()
        # A job that was cancelled may start, and stop, after its client has its answer.
        await self.wait_until(lambda: (self.engine.running, self.engine.waiting) == (0, 0))


def http_client(url: str, **options: Any) -> httpx2.AsyncClient:
    """Return a client; it loads no certificates, which would take most of its start time."""
    options.setdefault("timeout", DEADLINE_S)
    return httpx2.AsyncClient(base_url=url, verify=_SSL_WITHOUT_CERTIFICATES, **options)


class _TestServer(uvicorn.Server):
    """Uvicorn without its signal handlers, its timer and its delays during the shutdown."""

    async def open(self, sock: socket.socket) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup([sock])

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.lifespan.shutdown()


_find_similar = unused_settings._find_similar


@functools.cache
def _find_similar_cached(letters: str, known: tuple[str, ...]) -> str | None:
    return _find_similar(letters, dict.fromkeys(known, ""))


def _find_similar_once(letters: str, known: Mapping[str, str]) -> str | None:
    """Compare a variable's name with those of the settings once: it takes half of a start."""
    return _find_similar_cached(letters, tuple(known))


@asynccontextmanager
async def run_server(settings: EmulatorSettings) -> AsyncIterator[Server]:
    """Serve the application with these settings on a free port."""
    events = EventRecorder()
    # Any: an Engine, or the engine pool in tests that serve several models.
    engine: Any = build_engine(settings)
    engine.subscribe(events)
    with patch.object(unused_settings, "_find_similar", _find_similar_once):
        components = build_components(settings, engine)
        app = create_app(components)
    # Uvicorn's configuration silences its access log.
    with restored_logger("uvicorn.access"):
        server = _TestServer(build_uvicorn_config(app, settings.connection_limits()))
        # Name the protocol: asyncio turns off Nagle's algorithm only for IPPROTO_TCP sockets.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.bind(("127.0.0.1", 0))
        await server.open(sock)
        try:
            yield Server(sock.getsockname()[1], engine, server, app, components, events)
        finally:
            await server.close()


# -- responses ------------------------------------------------------------------------------------


def parse_sse(body: bytes) -> list[Any]:
    """Return the decoded data of all events; the body must consist of complete events."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), text[-200:]
    events: list[Any] = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(": "):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def parse_chunks(body: bytes) -> list[dict[str, Any]]:
    """Return a stream's chunks; check that [DONE] is last and occurs once."""
    events = parse_sse(body)
    assert events[-1] == "[DONE]"
    assert "[DONE]" not in events[:-1]
    return events[:-1]


def join_text(chunks: Sequence[dict[str, Any]]) -> str:
    """Return the text of a stream's chat or completion chunks."""
    texts = [
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk.get("choices", ())
    ]
    return "".join(texts)


class RawConnection:
    """A TCP connection without an HTTP client, to send and read exact bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = b""

    @classmethod
    async def connect(cls, port: int, receive_buffer: int | None = None) -> Self:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def post(self, path: str, body: dict[str, Any], headers: str = "") -> None:
        data = json.dumps(body).encode()
        await self.send(
            build_request_head("POST", path, f"content-length: {len(data)}\r\n{headers}") + data
        )

    async def read(self) -> bytes:
        """Return one network read; empty at the end."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._loop.sock_recv(self.sock, 1 << 20)

    async def read_all(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        data, self._buffer = self._buffer, b""
        while received := await self.read():
            data += received
        return data

    async def read_until(self, mark: bytes) -> bytes:
        """Read up to and including `mark`."""
        while mark not in self._buffer:
            await self._fill_buffer()
        content, mark, self._buffer = self._buffer.partition(mark)
        return content + mark

    async def read_exactly(self, count: int) -> bytes:
        """Read `count` bytes."""
        while len(self._buffer) < count:
            await self._fill_buffer()
        content, self._buffer = self._buffer[:count], self._buffer[count:]
        return content

    async def _fill_buffer(self) -> None:
        data = await self.read()
        if not data:
            raise EOFError(self._buffer)
        self._buffer += data

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Read a response's status, and its headers by lower-case name."""
        status, *lines = (await self.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}

    async def read_chunk(self) -> bytes:
        """Read one chunk of a chunked body; the last chunk is empty."""
        size = int(await self.read_until(b"\r\n"), 16)
        return (await self.read_exactly(size + 2))[:-2]

    async def read_response(self) -> tuple[int, dict[str, str], bytes]:
        """Read a complete response: status, headers, body."""
        status, headers = await self.read_head()
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while part := await self.read_chunk():
                body += part
        else:
            body = await self.read_exactly(int(headers.get("content-length", "0")))
        return status, headers, body

    def close(self, *, reset: bool = False) -> None:
        """Close the connection, optionally with a reset."""
        if reset and self.sock.fileno() != -1:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_request_head(method: str, target: str, headers: str = "", version: str = "1.1") -> bytes:
    """Return a request's head."""
    return (
        f"{method} {target} HTTP/{version}\r\nhost: localhost\r\n"
        f"content-type: application/json\r\n{headers}\r\n"
    ).encode("latin-1")
