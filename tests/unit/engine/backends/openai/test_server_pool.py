"""The choice of a server, and the pauses of those that fail."""

from __future__ import annotations

import pytest

from engine.backends.openai.server_pool import MAX_PAUSE_S, ServerPool, base_url
from tests.virtual_time import VirtualClock


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:8000/v1", "http://a:8000"),
        ("http://a:8000/v1/", "http://a:8000"),
        ("http://a:8000", "http://a:8000"),
        ("https://x/v2/id/openai/v1", "https://x/v2/id/openai"),
    ],
)
def test_base_url_has_no_version(url: str, base: str) -> None:
    assert base_url(url) == base


async def test_line_goes_to_the_server_with_the_fewest(clock: VirtualClock) -> None:
    pool = ServerPool(["http://a", "http://b"])
    first, second, third = [await pool.acquire() for _ in range(3)]
    assert {first.url, second.url} == {"http://a", "http://b"}
    pool.release(second)
    pool.release(third)
    assert await pool.acquire() is second or (await pool.acquire()) is second
    assert clock.elapsed_s == 0


async def test_server_that_fails_is_paused_and_the_others_get_its_lines(
    clock: VirtualClock,
) -> None:
    pool = ServerPool(["http://a", "http://b"])
    failed = await pool.acquire()
    pool.pause(failed)
    assert {(await pool.acquire()).url for _ in range(5)} == {
        each.url for each in pool.servers if each is not failed
    }
    assert clock.elapsed_s == 0


async def test_pause_doubles_with_each_failure_up_to_a_limit(clock: VirtualClock) -> None:
    pool = ServerPool(["http://a"])
    pauses = []
    for _ in range(9):
        server, before = await pool.acquire(), clock.elapsed_s
        pool.pause(server)
        # Lines that were in progress at the same failure do not count again.
        pool.pause(server)
        pool.release(server)
        await pool.acquire()
        pauses.append(round(clock.elapsed_s - before, 1))
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == MAX_PAUSE_S
    pool.record_answer(pool.servers[0])
    assert pool.pause(pool.servers[0]) == 0.5


async def test_server_is_paused_for_as_long_as_it_asks(clock: VirtualClock) -> None:
    pool = ServerPool(["http://a"])
    server = await pool.acquire()
    assert pool.pause(server, 7) == 7
    await pool.acquire()
    assert clock.elapsed_s == pytest.approx(7, abs=0.01)
