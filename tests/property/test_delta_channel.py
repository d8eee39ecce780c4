"""A producer thread against a consumer that drains only when it is woken."""

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runs.channel import DeltaChannel

ITEMS = 30_000


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads switch as often as possible, so that they interleave everywhere."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def produce(channel: DeltaChannel[int], count: int) -> None:
    at = 0
    while at < count:
        size = at % 3
        if size == 0:
            channel.put(at)
            at += 1
        else:
            channel.extend(range(at, min(at + size, count)))
            at += size


@pytest.mark.usefixtures("eager_switching")
def test_nothing_is_lost_between_threads(scale: int) -> None:
    awake = threading.Event()
    channel: DeltaChannel[int] = DeltaChannel(awake.set)
    count = ITEMS * scale
    producer = threading.Thread(target=produce, args=(channel, count), daemon=True)
    producer.start()
    taken: list[int] = []
    while len(taken) < count:
        assert awake.wait(10), f"no wake-up came for what followed item {len(taken)}"
        awake.clear()
        taken += channel.drain()
    producer.join(10)
    assert taken == list(range(count))


@pytest.mark.usefixtures("eager_switching")
async def test_nothing_is_lost_between_a_thread_and_a_loop(scale: int) -> None:
    loop, awake = asyncio.get_running_loop(), asyncio.Event()
    channel: DeltaChannel[int] = DeltaChannel(lambda: loop.call_soon_threadsafe(awake.set))
    count = ITEMS * scale
    producer = threading.Thread(target=produce, args=(channel, count), daemon=True)
    producer.start()
    taken: list[int] = []
    while len(taken) < count:
        async with asyncio.timeout(40):
            await awake.wait()
        awake.clear()
        taken += channel.drain()
    producer.join(10)
    assert taken == list(range(count))


@given(st.lists(st.one_of(st.integers(0, 4), st.just("drain"))))
def test_pending_items_are_announced_by_one_wake_up(steps: list[int | str]) -> None:
    announced = 0

    def wake() -> None:
        nonlocal announced
        announced += 1

    channel: DeltaChannel[int] = DeltaChannel(wake)
    pending: list[int] = []
    item = 0
    for step in steps:
        if isinstance(step, str):
            assert channel.drain() == pending
            pending, announced = [], 0
        elif step == 0:
            channel.put(item)
            pending.append(item)
            item += 1
        else:
            channel.extend(range(item, item + step))
            pending += range(item, item + step)
            item += step
        assert announced == bool(pending)
