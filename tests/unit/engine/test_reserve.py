"""Slots that are reserved before their request is known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import BackendConfig, Engine, GenerationRequest, Priority
from engine.admission import Slot
from engine.errors import EngineClosed, EngineDead, ModelLoadFailed
from tests.conftest import EngineFactory, ScriptFactory
from tests.waiting import run_ready_tasks, wait_until

DEADLINE_S = 30.0


def scripted(script: Path) -> BackendConfig:
    return BackendConfig.from_wire("scripted", {"model_path": str(script)})


async def generate_text(engine: Engine, prompt: str, slot: Slot | None = None) -> str:
    request = GenerationRequest(prompt=prompt, request_id=prompt, priority=Priority.JOB)
    async with await engine.generate(request, slot) as stream:
        return "".join([delta.text async for batch in stream for delta in batch])


async def wait_until_free(engine: Engine) -> None:
    await wait_until(lambda: not engine.running)


def test_slot_is_taken_or_released_only_once() -> None:
    is_taken: list[int] = []
    slot = Slot(lambda: is_taken.append(1))
    slot.release()
    slot.release()
    assert is_taken == [1]
    assert not slot.take()
    taken = Slot(lambda: is_taken.append(2))
    assert taken.take()
    assert not taken.take()
    taken.release()
    assert is_taken == [1]


async def test_request_runs_on_the_reserved_slot(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    engine = engine_factory(scripted(script({"pieces": ["ok"]}, slots=1)), isolation="thread")
    slot = await engine.reserve(Priority.JOB)
    assert (engine.running, engine.waiting) == (1, 0)
    assert await generate_text(engine, "a", slot) == "ok"
    await wait_until_free(engine)
    # The slot is used: a second request with it waits like any other.
    assert await generate_text(engine, "b", slot) == "ok"
    await wait_until_free(engine)


async def test_reserve_waits_behind_interactive_requests(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    engine = engine_factory(scripted(script({"pieces": ["ok"]}, slots=1)), isolation="thread")
    first = await engine.reserve(Priority.JOB)
    order: list[str] = []

    async def reserve(name: str, priority: Priority) -> None:
        slot = await engine.reserve(priority)
        order.append(name)
        slot.release()

    tasks = [
        asyncio.create_task(reserve("batch", Priority.BATCH)),
        asyncio.create_task(reserve("job", Priority.JOB)),
        asyncio.create_task(reserve("chat", Priority.INTERACTIVE)),
    ]
    await wait_until(lambda: engine.waiting == len(tasks))
    first.release()
    await asyncio.gather(*tasks)
    assert order == ["chat", "job", "batch"]
    assert engine.running == 0


async def test_cancelled_reserve_leaks_no_slot(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    path = script({"pieces": ["ok"]}, slots=1, load_ms=100)
    engine = engine_factory(scripted(path), isolation="thread")
    loading = asyncio.create_task(engine.reserve(Priority.JOB))
    await run_ready_tasks(1)
    assert engine.running == 0
    loading.cancel()
    slot = await engine.reserve(Priority.JOB)
    waiting = asyncio.create_task(engine.reserve(Priority.JOB))
    await wait_until(lambda: engine.waiting == 1)
    waiting.cancel()
    await asyncio.gather(loading, waiting, return_exceptions=True)
    slot.release()
    assert (engine.running, engine.waiting) == (0, 0)


async def test_reserve_holds_no_slot_during_a_restart(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    crash = {"when": "crash", "pieces": [{"signal": "SIGKILL"}]}
    engine = engine_factory(scripted(script(crash, {"pieces": ["ok"]}, slots=1)))
    slot = await engine.reserve(Priority.JOB)
    waiting = asyncio.create_task(engine.reserve(Priority.JOB))
    with pytest.raises(Exception, match="SIGKILL"):
        await generate_text(engine, "crash", slot)
    await wait_until(lambda: (engine.running, engine.waiting) == (0, 0))
    # A later request with a higher priority goes first.
    request = GenerationRequest(prompt="x", request_id="x", priority=Priority.INTERACTIVE)
    chat = asyncio.create_task(engine.generate(request))
    async with asyncio.timeout(DEADLINE_S):
        stream = await chat
        assert not waiting.done()
        async with stream:
            async for _ in stream:
                pass
        (await waiting).release()
    await wait_until_free(engine)


async def test_reserve_fails_when_the_engine_dies(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    broken = engine_factory(scripted(script({}, load_error="broken")), isolation="thread")
    for _ in range(2):
        with pytest.raises(ModelLoadFailed, match="broken"):
            await broken.reserve(Priority.JOB)
    deaf = {"pieces": [{"hang_s": 3600, "deaf": True}]}
    engine = engine_factory(scripted(script(deaf, slots=1)), isolation="thread", abort_grace_s=0.1)
    stream = await engine.generate(GenerationRequest(prompt="x", request_id="x"))
    waiting = asyncio.create_task(engine.reserve(Priority.JOB))
    await wait_until(lambda: engine.waiting == 1)
    stream.abort()
    with pytest.raises(EngineDead):
        await waiting
    with pytest.raises(EngineDead):
        await engine.reserve(Priority.JOB)
    closing = engine_factory(scripted(script({"pieces": ["ok"]}, slots=1)), isolation="thread")
    slot = await closing.reserve(Priority.JOB)
    last = asyncio.create_task(closing.reserve(Priority.JOB))
    await wait_until(lambda: closing.waiting == 1)
    await closing.close()
    with pytest.raises(EngineClosed):
        await last
    slot.release()
