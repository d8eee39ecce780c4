"""Clients that disconnect at a random event leave no running request and no memory (R31)."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from emulator.settings.emulator_settings import EmulatorSettings
from engine.hooks import EngineEvent, RequestEnded, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.integration.emulator.serving import RawConnection, join_text, parse_sse, run_server
from tests.waiting import poll_until

COUNT = 80
# In the long form.
LONG_COUNT = 1_000
TOKEN_MS = 10
MAX_EVENTS = 5
WORDS = 500
# Leaked requests of this size would be 20 MB or more; an allocator that serves four at a time keeps
# 1 to 3 MB.
PROMPT_BYTES = 100_000
GROWTH_BYTES = 8_000_000


def count(scale: int) -> int:
    return COUNT if scale == 1 else LONG_COUNT


def prompt_of(number: int, size: int = 0) -> str:
    """Return a unique prompt, which the engine returns as its answer."""
    padding = "x" * (size // WORDS)
    return " ".join(f"{number}.{index}{padding}" for index in range(WORDS))


def call_of(number: int, prompt: str) -> tuple[str, dict[str, Any], str]:
    """Return a route, a request body and the expected text."""
    if number % 2:
        turns = [{"role": "user", "content": prompt}]
        body = {"messages": turns, "stream": True}
        return "/v1/chat/completions", body, f"user: {prompt}\nassistant:"
    return "/v1/completions", {"prompt": prompt, "stream": True}, prompt


async def read_events(wire: RawConnection, wanted_count: int, gaps: list[float]) -> str:
    """Read so many events, perhaps a few more that came with them; return their text.

    The time between two reads goes to `gaps`.
    """
    status, _ = await wire.read_head()
    assert status == 200
    events: list[Any] = []
    loop, last = asyncio.get_running_loop(), 0.0
    while len(events) < wanted_count:
        events += parse_sse(await wire.read_chunk())
        if last:
            gaps.append(loop.time() - last)
        last = loop.time()
    # On a busy machine the stream may have ended by now.
    return join_text([event for event in events if event != "[DONE]"])


async def test_slot_is_free_within_a_tokens_time(script: ScriptFactory, scale: int) -> None:
    # The one slot goes to the next request, which waits when the client of the last one leaves.
    path = script({"delay_ms": TOKEN_MS}, slots=1, context_length=10**6)
    settings = EmulatorSettings(model_path=path, job_db=":memory:", drain_s=0)
    rng = random.Random(1)
    events: list[tuple[float, EngineEvent]] = []
    left_at: list[float] = []
    gaps: list[float] = []
    async with run_server(settings) as server:
        loop = asyncio.get_running_loop()
        server.engine.subscribe(lambda event: events.append((loop.time(), event)))
        await server.engine.ready()
        for number in range(count(scale)):
            route, body, expected = call_of(number, prompt_of(number))
            with await RawConnection.connect(server.port) as wire:
                await wire.post(route, body)
                await server.events.wait(RequestStarted, number + 1)
                if event_count := rng.randrange(MAX_EVENTS + 1):
                    text = await read_events(wire, event_count, gaps)
                    # A stream's first event may be the role alone.
                    assert text or event_count == 1
                    assert expected.startswith(text)
                left_at.append(loop.time())
                wire.close(reset=rng.random() < 0.3)
        await server.events.wait(RequestEnded, count(scale))
        await server.wait_until_idle()
        async with server.client() as client:
            await assert_idle(client)

    starts = [(at, event) for at, event in events if isinstance(event, RequestStarted)]
    ends = [(at, event) for at, event in events if isinstance(event, RequestEnded)]
    # The last two are the requests after the loop.
    assert [each.request_id for _, each in starts] == [each.request_id for _, each in ends]
    assert all(event.aborted for _, event in ends[: count(scale)])
    for (ended, _), (started, _) in zip(ends, starts[1:], strict=False):
        assert ended <= started
    took = [ended - at for at, (ended, _) in zip(left_at, ends, strict=False)]
    # The time of a token under the machine's current load; most slots are free in less than one.
    token_s = statistics.median(gaps)
    assert statistics.median(took) < 5 * token_s, (token_s, sorted(took))


async def assert_idle(client: httpx2.AsyncClient) -> None:
    """Check that no request is open, and that the next answers contain their own text only."""
    health = (await client.get("/health")).json()["engine"]
    assert (health["running"], health["waiting"]) == (0, 0)
    jobs = (await client.get("/v2/default/health")).json()["jobs"]
    assert (jobs["inQueue"], jobs["inProgress"]) == (0, 0)
    response = await client.post("/v1/completions", json={"prompt": "all is well"})
    assert response.json()["choices"][0]["text"] == "all is well"
    streamed = await client.post("/v1/completions", json={"prompt": "still so", "stream": True})
    assert join_text(parse_sse(streamed.content)[:-1]) == "still so"


@pytest.mark.long
async def test_memory_files_and_threads_stay_as_they_were(
    script: ScriptFactory, hosts_of: Callable[[int], list[int]], scale: int
) -> None:
    path = script({"delay_ms": 2}, slots=4, context_length=10**6)
    settings = {"MODEL_PATH": str(path)}
    rng = random.Random(2)
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()

        async def leave(number: int) -> None:
            route, body, expected = call_of(number, prompt_of(number, PROMPT_BYTES))
            with await RawConnection.connect(server.port) as wire:
                await wire.post(route, body)
                text = await read_events(wire, rng.randrange(1, 20), [])
                assert expected.startswith(text)
                wire.close(reset=rng.random() < 0.3)

        async def leave_all(first: int, total: int) -> None:
            for start in range(first, first + total, 4):
                await asyncio.gather(*(leave(start + each) for each in range(4)))

        async with server.client() as client:

            async def idle() -> bool:
                health = (await client.get("/health")).json()["engine"]
                return not (health["running"] or health["waiting"])

            await leave_all(0, COUNT // 2)
            await poll_until(idle)
            before, state = resident(server, hosts_of), server.state
            await leave_all(COUNT, count(scale))
            await poll_until(idle)
            grown = resident(server, hosts_of) - before
            assert grown < GROWTH_BYTES, f"{grown:,} bytes more"
            await poll_until(lambda: now_is(server, state))
            await assert_idle(client)
        assert "Traceback" not in server.stderr
        assert hosts_of(server.pid)


async def now_is(server: EmulatorProcess, state: tuple[int, int]) -> bool:
    return server.state == state


def resident(server: EmulatorProcess, hosts_of: Callable[[int], list[int]]) -> int:
    """The memory of the server and of its engine's process."""
    hosts = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in hosts_of(server.pid)]
    pages = sum(map(int, hosts))
    return server.resident_bytes + pages * os.sysconf("SC_PAGE_SIZE")
