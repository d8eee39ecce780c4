from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.models.memory import ModelMemory, Place, Residency
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks, wait_until


@dataclass
class Machine:
    """Models that take `load_s` to load, and the peak of their memory together."""

    memory: ModelMemory
    load_s: float = 0.0
    places: dict[str, Residency] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    peak_bytes: int = 0
    changing: int = 0

    def add(self, name: str, need_bytes: int = 1, keep_alive_s: float = math.inf) -> Residency:
        async def load() -> bool:
            await self._change(f"load {name}")
            return name not in self.failing

        async def unload() -> None:
            assert not self.places[name].users
            await self._change(f"unload {name}")

        self.places[name] = self.memory.add(name, need_bytes, load, unload, keep_alive_s)
        return self.places[name]

    async def _change(self, what: str) -> None:
        self.changing += 1
        assert self.changing == 1
        self.log.append(what)
        self.peak_bytes = max(self.peak_bytes, self.memory.used_bytes)
        await asyncio.sleep(self.load_s)
        self.changing -= 1


def machine(budget: int = 1, names: str = "abc", load_s: float = 0.0) -> Machine:
    built = Machine(ModelMemory(budget), load_s)
    for name in names:
        built.add(name)
    return built


async def test_model_is_loaded_for_its_first_request() -> None:
    models = machine()
    await models.places["a"].enter()
    assert models.places["a"].place is Place.IN
    assert models.log == ["load a"]


async def test_model_stays_for_further_requests() -> None:
    models = machine()
    for _ in range(3):
        await models.places["a"].enter()
        models.places["a"].leave()
    await run_ready_tasks()
    assert models.log == ["load a"]


async def test_least_recently_used_model_makes_room() -> None:
    models = machine(budget=2)
    for name in "abac":
        await models.places[name].enter()
        models.places[name].leave()
    await run_ready_tasks()
    assert models.log == ["load a", "load b", "unload b", "load c"]


async def test_model_with_users_is_not_unloaded() -> None:
    models = machine()
    a, b = models.places["a"], models.places["b"]
    await a.enter()
    waiting = asyncio.create_task(b.enter())
    await run_ready_tasks()
    assert not waiting.done()
    a.leave()
    await waiting
    assert models.log == ["load a", "unload a", "load b"]


async def test_new_users_wait_behind_a_model_that_waits() -> None:
    models = machine()
    a, b = models.places["a"], models.places["b"]
    await a.enter()
    second = asyncio.create_task(b.enter())
    await run_ready_tasks()
    third = asyncio.create_task(a.enter())
    await run_ready_tasks()
    assert not third.done()
    a.leave()
    await second
    assert not third.done()
    b.leave()
    await third
    assert models.log == ["load a", "unload a", "load b", "unload b", "load a"]


async def test_cancelled_wait_lets_the_others_go_on() -> None:
    models = machine()
    a, b = models.places["a"], models.places["b"]
    await a.enter()
    second = asyncio.create_task(b.enter())
    await run_ready_tasks()
    third = asyncio.create_task(a.enter())
    await run_ready_tasks()
    second.cancel()
    await third
    assert a.users == 2
    assert models.log == ["load a"]


async def test_cancellation_in_the_turn_of_the_grant_gives_the_use_back() -> None:
    models = machine()
    a = models.places["a"]
    waiting = asyncio.create_task(a.enter())
    await wait_until(lambda: a.users == 1, gap_s=0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert models.places["a"].users == 0


async def test_waiting_requests_are_bounded() -> None:
    models = machine()
    await models.places["a"].enter()
    waiting = [asyncio.create_task(models.places["b"].enter(2)) for _ in range(2)]
    await run_ready_tasks()
    with pytest.raises(QueueFull, match="2 requests wait for the model b"):
        await models.places["b"].enter(2)
    models.places["a"].leave()
    await asyncio.gather(*waiting)


async def test_model_that_does_not_load_gives_its_memory_back() -> None:
    models = machine()
    models.failing.add("a")
    await models.places["a"].enter()
    models.places["a"].leave()
    await models.places["b"].enter()
    assert models.log == ["load a", "load b"]


async def test_model_that_fails_later_gives_its_memory_back() -> None:
    models = machine()
    a, b = models.places["a"], models.places["b"]
    await a.enter()
    waiting = asyncio.create_task(b.enter())
    await run_ready_tasks()
    a.release()
    await waiting
    assert models.log == ["load a", "load b"]


async def test_model_larger_than_the_budget_replaces_all_others() -> None:
    models = machine(budget=2)
    large = models.add("large", need_bytes=5)
    for name in "ab":
        await models.places[name].enter()
        models.places[name].leave()
    await large.enter()
    assert models.log == ["load a", "load b", "unload a", "unload b", "load large"]


async def test_unused_model_is_unloaded_after_its_time(clock: VirtualClock) -> None:
    models = machine()
    a = models.places["a"]
    a.keep_alive(5)
    await a.enter()
    await clock.advance(60)
    a.leave()
    await clock.advance(4.9)
    assert models.log == ["load a"]
    await clock.advance(0.2)
    assert a.place is Place.OUT
    assert models.log == ["load a", "unload a"]


async def test_use_restarts_keep_alive(clock: VirtualClock) -> None:
    models = machine()
    a = models.places["a"]
    a.keep_alive(5)
    for _ in range(3):
        await a.enter()
        a.leave()
        await clock.advance(4)
    assert models.log == ["load a"]


async def test_keep_alive_of_zero_unloads_an_unused_model() -> None:
    models = machine()
    a = models.places["a"]
    await a.enter()
    a.keep_alive(0)
    await run_ready_tasks()
    assert models.log == ["load a"]
    a.leave()
    await run_ready_tasks()
    assert models.log == ["load a", "unload a"]


async def test_close_loads_nothing_more() -> None:
    models = machine(load_s=3600)
    waiting = asyncio.create_task(models.places["a"].enter())
    await run_ready_tasks()
    await models.memory.close()
    other = asyncio.create_task(models.places["b"].enter())
    await run_ready_tasks()
    assert models.log == ["load a"]
    for task in (waiting, other):
        task.cancel()
    await asyncio.gather(waiting, other, return_exceptions=True)


_REQUESTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    max_size=20,
)


@given(_REQUESTS, st.integers(1, 5), st.lists(st.integers(1, 3), min_size=4, max_size=4))
# A request for a model comes when its unloading was decided, and has not begun.
@example([("b", 3, 0, True), ("a", 0, 0, False), ("a", 3, 0, False)], 1, [1, 1, 1, 1])
@settings(max_examples=30, deadline=None)
def test_every_request_gets_its_model_within_the_budget(
    requests: list[tuple[str, int, int, bool]], budget: int, needs: list[int]
) -> None:
    async def run() -> None:
        models = Machine(ModelMemory(budget))
        for name, need in zip("abcd", needs, strict=True):
            models.add(name, need)

        async def request(name: str, start: int, turns: int, is_cancelled: bool) -> None:
            for _ in range(start):
                await asyncio.sleep(0)
            entering = asyncio.create_task(models.places[name].enter())
            if is_cancelled:
                await asyncio.sleep(0)
                entering.cancel()
                await asyncio.gather(entering, return_exceptions=True)
                if entering.cancelled():
                    return
            await entering
            assert models.places[name].place is Place.IN
            for _ in range(turns):
                await asyncio.sleep(0)
            models.places[name].leave()

        async with asyncio.timeout(30):
            await asyncio.gather(*(request(*each) for each in requests))
        assert models.peak_bytes <= max(budget, *needs)
        assert all(each.users == 0 for each in models.places.values())
        await models.memory.close()

    asyncio.run(run())
