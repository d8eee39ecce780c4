"""Floods of a server process, and its memory and the latency of `/health` meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.security.raw_http import exchange, request_bytes

# No flood of one connection may cost more.
MEMORY_LIMIT_BYTES = 300_000_000
HEALTH_LIMIT_S = 0.2
# A server may keep so much after a flood: code, caches and buffers.
SETTLED_BYTES = 60_000_000
_SETTLE_INTERVAL_S = 0.5
_PROBE_INTERVAL_S = 0.05
# The server needs no key of those who attack it.
_SETTINGS = {"ENGINE": "scripted", "ENGINE_ISOLATION": "thread", "API_KEYS": "secret-key"}
_KEY = [("Host", "127.0.0.1"), ("Authorization", "Bearer secret-key")]
_READ_BYTES = 65_536

Attack = Callable[[int, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodResult:
    """The server's memory, and how long `/health` took, during a flood.

    `settled_bytes` is the least memory within `settle_s` after it.
    """

    before_bytes: int
    peak_bytes: int
    settled_bytes: int
    median_s: float
    worst_s: float
    log: str


async def flood(attack: Attack, seconds: float, settle_s: float = 0.0) -> FloodResult:
    """Attack a server for some seconds, asking for `/health` on connections of their own."""
    async with run_emulator(_SETTINGS, "--port", "0", grace_s=0.2) as server:
        await server.wait_until_listening()
        await exchange(server.port, "GET", "/health")
        return await _measured(server, attack, seconds, settle_s)


async def _measured(
    server: EmulatorProcess, attack: Attack, seconds: float, settle_s: float
) -> FloodResult:
    before = peak = server.resident_bytes
    end_s = time.monotonic() + seconds
    attacker = asyncio.create_task(attack(server.port, end_s))
    took = []
    while time.monotonic() < end_s and peak < 10 * MEMORY_LIMIT_BYTES:
        began = time.perf_counter()
        assert (await exchange(server.port, "GET", "/health")).status == 200
        took.append(time.perf_counter() - began)
        peak = max(peak, server.resident_bytes)
        await asyncio.sleep(_PROBE_INTERVAL_S)
    attacker.cancel()
    with suppress(asyncio.CancelledError):
        await attacker
    settled = server.resident_bytes
    end_s = time.monotonic() + settle_s
    while time.monotonic() < end_s and settled > before + SETTLED_BYTES:
        await asyncio.sleep(_SETTLE_INTERVAL_S)
        settled = min(settled, server.resident_bytes)
    return FloodResult(
        before_bytes=before,
        peak_bytes=peak,
        settled_bytes=settled,
        median_s=statistics.median(took),
        worst_s=max(took),
        log=server.stderr,
    )


async def flood_pipeline(seconds: float, settle_s: float = 0.0) -> FloodResult:
    """Send requests without a key on one connection, faster than they are answered."""
    return await flood(_pipeline, seconds, settle_s)


async def flood_trailers(seconds: float, settle_s: float = 0.0) -> FloodResult:
    """Send trailers without an end, on a new connection whenever the server closes one."""
    return await flood(_trailers, seconds, settle_s)


async def flood_bodies(seconds: float, settle_s: float = 0.0) -> FloodResult:
    """Send 20 MB bodies of small objects, each without its last byte, on 50 connections."""
    return await flood(_bodies, seconds, settle_s)


async def flood_values(seconds: float, settle_s: float = 0.0) -> FloodResult:
    """Send bodies with as many JSON values as are allowed, which no route accepts."""
    return await flood(_values, seconds, settle_s)


async def _pipeline(port: int, end_s: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def read() -> None:
        with suppress(ConnectionError):
            while await reader.read(_READ_BYTES):
                pass

    reading = asyncio.create_task(read())
    requests = request_bytes("GET", "/v1/models") * 2_000
    try:
        await _send_until(writer, requests, end_s)
    finally:
        reading.cancel()
        writer.transport.abort()


async def _trailers(port: int, end_s: float) -> None:
    headers = [("Host", "127.0.0.1"), ("Transfer-Encoding", "chunked")]
    start = request_bytes("POST", "/v2/e/job-done/w/j", headers) + b"0\r\n"
    trailers = (b"x: " + b"y" * 100 + b"\r\n") * 1_000
    while time.monotonic() < end_s:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(start)
            await _send_until(writer, trailers, end_s)
        finally:
            writer.transport.abort()


async def _bodies(port: int, end_s: float) -> None:
    content = b'{"input":[' + b'{"a":1},' * 2_400_000
    head = request_bytes("POST", "/runsync", [*_KEY, ("Content-Length", str(len(content) + 1))])

    async def send() -> None:
        while time.monotonic() < end_s:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                with suppress(ConnectionError, TimeoutError):
                    writer.write(head)
                    for at in range(0, len(content), 1 << 20):
                        writer.write(content[at : at + (1 << 20)])
                        await asyncio.wait_for(writer.drain(), 1)
                    await asyncio.sleep(1)
            finally:
                writer.transport.abort()

    await asyncio.gather(*(send() for _ in range(50)))


async def _values(port: int, end_s: float) -> None:
    body = b'{"a":[' + b'{"b":1},' * 80_000 + b"0]}"

    async def send() -> None:
        while time.monotonic() < end_s:
            with suppress(ConnectionError):
                await exchange(port, "POST", "/run", _KEY, body)

    await asyncio.gather(*(send() for _ in range(8)))


async def _send_until(writer: asyncio.StreamWriter, data: bytes, end_s: float) -> None:
    """Send the same bytes again and again until a time, or until the server closes."""
    with suppress(ConnectionError):
        while time.monotonic() < end_s:
            writer.write(data)
            await writer.drain()
