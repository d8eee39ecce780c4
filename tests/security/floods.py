"""Floods of a server process: what it does to memory and to `/health`."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.integration.emulator.processes import Emulator, emulator
from tests.security.raw_http import exchange, request_bytes

# No flood of one connection may cost more.
MEMORY_LIMIT_BYTES = 300_000_000
HEALTH_LIMIT_S = 0.2
_PROBE_INTERVAL_S = 0.05
# The server needs no key of those who attack it.
_SETTINGS = {"ENGINE": "scripted", "ENGINE_ISOLATION": "thread", "API_KEYS": "secret-key"}
_READ_BYTES = 65_536

Attack = Callable[[int, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodResult:
    """The server's memory, and how long `/health` took, during a flood."""

    peak_bytes: int
    median_s: float
    worst_s: float
    log: str


async def flood(attack: Attack, seconds: float) -> FloodResult:
    """Attack a server for some seconds, asking for `/health` on connections of their own."""
    async with emulator(_SETTINGS, "--port", "0", grace_s=0.2) as server:
        await server.listening()
        await exchange(server.port, "GET", "/health")
        return await _measured(server, attack, seconds)


async def _measured(server: Emulator, attack: Attack, seconds: float) -> FloodResult:
    end_s = time.monotonic() + seconds
    attacker = asyncio.create_task(attack(server.port, end_s))
    peak, took = server.resident_bytes, []
    while time.monotonic() < end_s and peak < 10 * MEMORY_LIMIT_BYTES:
        began = time.perf_counter()
        assert (await exchange(server.port, "GET", "/health")).status == 200
        took.append(time.perf_counter() - began)
        peak = max(peak, server.resident_bytes)
        await asyncio.sleep(_PROBE_INTERVAL_S)
    attacker.cancel()
    with suppress(asyncio.CancelledError):
        await attacker
    return FloodResult(
        peak_bytes=peak, median_s=statistics.median(took), worst_s=max(took), log=server.stderr
    )


async def flood_pipeline(seconds: float) -> FloodResult:
    """Send requests without a key on one connection, faster than they are answered."""
    return await flood(_pipeline, seconds)


async def flood_trailers(seconds: float) -> FloodResult:
    """Send trailers without an end, on a new connection whenever the server closes one."""
    return await flood(_trailers, seconds)


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
    start = b"POST /v2/e/job-done/w/j HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    trailers = (b"x: " + b"y" * 100 + b"\r\n") * 1_000
    while time.monotonic() < end_s:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(start)
            await _send_until(writer, trailers, end_s)
        finally:
            writer.transport.abort()


async def _send_until(writer: asyncio.StreamWriter, data: bytes, end_s: float) -> None:
    """Send the same bytes again and again until a time, or until the server closes."""
    with suppress(ConnectionError):
        while time.monotonic() < end_s:
            writer.write(data)
            await writer.drain()
