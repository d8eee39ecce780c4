"""Several engines with the interface of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine import (
    BackendConfig,
    EngineConfig,
    EnginePool,
    EngineState,
    GenerationRequest,
    Priority,
    engines_by_model,
)
from engine.errors import EngineClosed, EngineDead, ModelLoadFailed
from engine.hooks import EngineEvent, HostLoaded
from engine.timeouts import Timeouts
from tests.conftest import ScriptFactory
from tests.unit.engine.test_reserve import generate_text
from tests.waiting import wait_until

DEADLINE_S = 30.0
PoolMaker = Callable[..., EnginePool]
FOREVER = {"when": "for ever", "pieces": ["on "], "repeat": -1, "delay_ms": 5}
FOR_EVER = GenerationRequest(prompt="for ever", request_id="for ever")
DEAF = {"when": "deaf", "pieces": ["x"], "prefill_ms": 1500, "deaf_prefill": True}


@pytest.fixture
async def pool_of(script: ScriptFactory) -> AsyncIterator[PoolMaker]:
    """Builds pools of scripts on threads, by their models' names, and closes them.

    The positional argument is the first answer of all of them.
    """
    pools: list[EnginePool] = []

    def make(*answers: dict[str, Any], **scripts: dict[str, Any]) -> EnginePool:
        paths = {name: script(*answers, {}, **fields) for name, fields in scripts.items()}
        configs = {
            name: EngineConfig(
                backend=BackendConfig.from_wire("scripted", {"model_path": str(path)}),
                isolation="thread",
                timeouts=Timeouts(abort_grace_s=0.2),
            )
            for name, path in paths.items()
        }
        pools.append(EnginePool(configs))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


async def test_pool_forwards_calls_to_all_engines(pool_of: PoolMaker) -> None:
    pool = pool_of(a={"slots": 2}, b={"slots": 3})
    loaded: list[EngineEvent] = []
    pool.subscribe(lambda event: loaded.append(event) if isinstance(event, HostLoaded) else None)
    assert (pool.state, pool.failure) == (EngineState.LOADING, None)
    for engine in pool.engines.values():
        await engine.ready()
    assert (pool.state, pool.slots, len(loaded)) == (EngineState.READY, 5, 2)
    assert (pool.running, pool.waiting, pool.restarts) == (0, 0, 0)
    assert engines_by_model(pool, "other") == pool.engines


async def test_pool_sums_counts_of_all_engines(pool_of: PoolMaker) -> None:
    pool = pool_of(FOREVER, a={"slots": 1}, b={"slots": 1})
    first, second = [await engine.generate(FOR_EVER) for engine in pool.engines.values()]
    assert pool.running == 2
    waiting = asyncio.create_task(generate_text(pool.engines["a"], "next"))
    await wait_until(lambda: pool.waiting == 1)
    second.abort()
    await wait_until(lambda: pool.running == 1)
    first.abort()
    assert await waiting == "next"


async def test_ready_loads_all_engines_even_if_one_is_ready(pool_of: PoolMaker) -> None:
    pool = pool_of(a={}, b={})
    await pool.engines["a"].ready()
    assert pool.engines["b"].state is EngineState.LOADING
    assert pool.state is EngineState.READY
    await pool.ready()
    await wait_until(lambda: pool.engines["b"].state is EngineState.READY)


async def test_model_that_fails_to_load_does_not_affect_others(pool_of: PoolMaker) -> None:
    pool = pool_of(broken={"load_error": "no such chip"}, fine={"slots": 2})
    await pool.ready()
    with pytest.raises(ModelLoadFailed, match="no such chip"):
        await pool.engines["broken"].ready()
    assert (pool.state, pool.failure, pool.slots) == (EngineState.READY, None, 2)
    assert await generate_text(pool.engines["fine"], "hello") == "hello"


async def test_pool_is_dead_when_all_engines_are(pool_of: PoolMaker) -> None:
    pool = pool_of(a={"load_error": "first"}, b={"load_error": "second"})
    with pytest.raises(ModelLoadFailed, match="first"):
        await pool.ready()
    assert pool.state is EngineState.DEAD
    with pytest.raises(ModelLoadFailed, match="first"):
        await pool.reserve(Priority.JOB)


async def test_reservations_are_limited_to_slots_and_granted_by_priority(
    pool_of: PoolMaker,
) -> None:
    pool = pool_of(a={"slots": 1}, b={"slots": 1})
    for engine in pool.engines.values():
        await engine.ready()
    held = [await pool.reserve(Priority.JOB) for _ in range(2)]
    order: list[Priority] = []

    async def wait(priority: Priority) -> None:
        place = await pool.reserve(priority)
        order.append(priority)
        place.release()

    waiting = [asyncio.create_task(wait(each)) for each in (Priority.BATCH, Priority.JOB)]
    await wait_until(lambda: pool.waiting == 2)
    for place in held:
        place.release()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*waiting)
    assert order == [Priority.JOB, Priority.BATCH]


async def test_model_loaded_later_adds_its_reservations(pool_of: PoolMaker) -> None:
    pool = pool_of(a={"slots": 1}, b={"slots": 3, "load_ms": 300})
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(4):
            await pool.reserve(Priority.JOB)


async def test_waiting_reservation_fails_when_the_last_model_dies(pool_of: PoolMaker) -> None:
    pool = pool_of(DEAF, a={"slots": 1})
    await pool.reserve(Priority.JOB)
    waiting = asyncio.create_task(pool.reserve(Priority.JOB))
    await wait_until(lambda: pool.waiting == 1)
    stream = await pool.engines["a"].generate(replace(FOR_EVER, prompt="deaf"))
    stream.abort()
    with pytest.raises(EngineDead, match="did not stop"):
        await waiting


async def test_reservation_cannot_be_taken_as_a_slot(pool_of: PoolMaker) -> None:
    # The job with the reservation then waits for a slot of its model.
    pool = pool_of(a={"slots": 1}, b={"slots": 1})
    place = await pool.reserve(Priority.JOB)
    async with asyncio.timeout(DEADLINE_S):
        assert await generate_text(pool.engines["a"], "one", place) == "one"
        assert await generate_text(pool.engines["b"], "two", place) == "two"
    place.release()
    await wait_until(lambda: pool.running == 0)


async def test_close_fails_waiting_reservations(pool_of: PoolMaker) -> None:
    pool = pool_of(a={"slots": 1})
    await pool.reserve(Priority.JOB)
    waiting = asyncio.create_task(pool.reserve(Priority.JOB))
    await wait_until(lambda: pool.waiting == 1)
    await pool.close()
    with pytest.raises(EngineClosed):
        await waiting


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a model"):
        EnginePool({})


async def test_model_is_added_only_to_a_pool_with_a_memory_plan(pool_of: PoolMaker) -> None:
    pool = pool_of(a={}, b={})
    with pytest.raises(ValueError, match="the model c cannot be added"):
        pool.add("c", EngineConfig(backend=BackendConfig.from_wire("scripted")), 1)
