"""The limit with simulated servers, in virtual time: queues, batches, and other loads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from statistics import mean

import pytest

from batch.remote.concurrency_limit import ConcurrencyLimit
from tests.virtual_time import VirtualClock

MAXIMUM = 32
TOKEN_S = 0.02
MEAN_TOKENS = 55


class SimulatedServer:
    """Answers lines of 10 to 100 tokens with some slots; the other lines wait in its queue."""

    def __init__(
        self,
        slots: int,
        *,
        token_s: Callable[[int], float] = lambda active: TOKEN_S,
        prompt_s: Callable[[int], float] = lambda line: 0.0,
        has_usage: bool = True,
    ) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._token_s = token_s
        self._prompt_s = prompt_s
        self._has_usage = has_usage
        self._random = random.Random(7)
        self.active = 0
        self.answered = 0
        self.tokens = 0

    async def answer(self, line: int) -> int:
        """Return the tokens of the answer, or its bytes if the server sends no token counts."""
        async with self._slots:
            self.active += 1
            tokens = self._random.randint(10, 2 * MEAN_TOKENS - 10)
            duration_s = self._prompt_s(line) + tokens * self._token_s(self.active)
            await asyncio.sleep(duration_s)
            self.active -= 1
        self.answered += 1
        self.tokens += tokens
        return tokens if self._has_usage else 300 + 4 * tokens


async def send_lines(server: SimulatedServer, lines: int, clock: VirtualClock) -> list[float]:
    """Send lines as the runner does, and return the limit after each answer."""
    limit = ConcurrencyLimit(MAXIMUM)
    numbers = iter(range(lines))
    limits: list[float] = []

    async def send() -> None:
        for line in numbers:
            await limit.acquire()
            try:
                started_s = clock.elapsed_s
                tokens = await server.answer(line)
                limit.record_answer(clock.elapsed_s - started_s, tokens)
                limits.append(limit.limit)
            finally:
                limit.release()

    async with asyncio.TaskGroup() as group:
        for _ in range(MAXIMUM):
            group.create_task(send())
    return limits


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
async def test_limit_settles_near_the_slots_of_a_server_that_queues(
    clock: VirtualClock, slots: int
) -> None:
    server = SimulatedServer(slots)
    limits = await send_lines(server, 1_500, clock)
    settled = limits[500:]
    assert slots <= mean(settled) <= max(2 * slots, 2.2)
    assert max(settled) <= 3 * slots
    assert server.tokens / clock.elapsed_s >= 0.95 * slots / TOKEN_S


async def test_limit_settles_below_the_maximum_without_token_counts(clock: VirtualClock) -> None:
    server = SimulatedServer(4, has_usage=False)
    limits = await send_lines(server, 1_500, clock)
    assert 4 <= mean(limits[500:]) <= 10
    assert server.tokens / clock.elapsed_s >= 0.9 * 4 / TOKEN_S


async def test_limit_reaches_the_maximum_if_latency_is_constant(clock: VirtualClock) -> None:
    limits = await send_lines(SimulatedServer(1_000), 300, clock)
    assert limits.index(MAXIMUM) < 2.2 * MAXIMUM
    assert min(limits[limits.index(MAXIMUM) :]) == MAXIMUM


async def test_limit_ignores_one_slow_answer(clock: VirtualClock) -> None:
    server = SimulatedServer(1_000, prompt_s=lambda line: 200.0 if line in (0, 100) else 0.0)
    limits = await send_lines(server, 300, clock)
    assert sorted(limits) == limits
    assert limits[-1] == MAXIMUM


async def test_limit_returns_to_the_maximum_after_prompts_get_longer(clock: VirtualClock) -> None:
    server = SimulatedServer(1_000, prompt_s=lambda line: 9.0 if line > 300 else 0.0)
    limits = await send_lines(server, 1_500, clock)
    assert limits[299] == MAXIMUM
    # One trial: a third of the lines less, until it shows that the throughput falls with them.
    assert min(limits[300:]) == pytest.approx(0.7 * MAXIMUM)
    assert set(limits[850:]) == {MAXIMUM}


async def test_limit_rises_with_latency_while_throughput_gains(clock: VirtualClock) -> None:
    """A GPU answers a larger batch slower, and more of it at a time."""
    server = SimulatedServer(1_000, token_s=lambda active: TOKEN_S * (1 + active / 8))
    limits = await send_lines(server, 1_500, clock)
    # At 8 lines the latency is twice as high, at 16 three times, at 24 four times.
    assert min(limits[500:]) > 14


async def test_limit_falls_when_a_server_has_fewer_slots(clock: VirtualClock) -> None:
    server = SimulatedServer(16)
    others: list[asyncio.Task[None]] = []

    async def occupy_slots() -> None:
        for _ in range(12):
            await server._slots.acquire()

    def occupy_slots_at_line_500(line: int) -> float:
        if line == 500:
            others.append(asyncio.create_task(occupy_slots()))
        return 0.0

    server._prompt_s = occupy_slots_at_line_500
    limits = await send_lines(server, 2_000, clock)
    assert mean(limits[300:500]) >= 16
    assert 4 <= mean(limits[1_500:]) <= 12
    assert others[0].done()
