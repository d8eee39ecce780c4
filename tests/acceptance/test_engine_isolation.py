"""Answers are never mixed up, and requests leak no slots or memory."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from engine import Engine, TokenStream
from engine.errors import EngineCrashed, GenerationCancelled
from tests.conftest import EngineFactory, ScriptFactory
from tests.integration.engine.support import ask, child_pid, request, scripted
from tests.waiting import wait_until

STREAMS = 200
KILLS = 5


@pytest.fixture(params=["process", "thread"])
def engine(
    request: pytest.FixtureRequest, engine_factory: EngineFactory, script: ScriptFactory
) -> Engine:
    """An engine with four slots that returns each prompt as its answer."""
    path = script({"when": "slow", "delay_ms": 1}, {}, slots=4, context_length=100_000)
    return engine_factory(scripted(path), isolation=request.param, max_queue=10_000)


def unique_prompt(number: int, rng: random.Random) -> str:
    pace = rng.choice(["slow", "quick"])
    return " ".join([f"{pace}{number}"] * rng.randint(1, 60))


async def read_some(stream: TokenStream, rng: random.Random) -> str:
    """Read a stream to its end, or leave it at a random token."""
    text = ""
    leave = rng.random() < 0.5
    try:
        async for batch in stream:
            text += "".join(delta.text for delta in batch)
            if leave and rng.random() < 0.2:
                stream.abort()
    except GenerationCancelled:
        assert leave
    return text


@pytest.mark.long_except("process")
async def test_streams_with_aborts_at_random_keep_every_slot(engine: Engine, scale: int) -> None:
    # R31
    rng = random.Random(7)
    for number in range(STREAMS * scale):
        prompt = unique_prompt(number, rng)
        async with await engine.generate(request(prompt)) as stream:
            text = await read_some(stream, rng) if rng.random() < 0.9 else ""
        assert prompt.startswith(text)
        if stream.result is not None:
            assert text == prompt
    await wait_until(lambda: not engine.running)
    assert (engine.running, engine.waiting, engine.restarts) == (0, 0, 0)


@pytest.mark.long_except("thread")
async def test_crowd_with_cancels_at_random_keeps_every_slot(engine: Engine, scale: int) -> None:
    # R31
    rng = random.Random(11)

    async def visit(number: int) -> None:
        prompt = unique_prompt(number, rng)
        async with await engine.generate(request(prompt)) as stream:
            text = await read_some(stream, rng)
        assert prompt.startswith(text)

    await engine.ready()
    for _ in range(3 * scale):
        tasks = [asyncio.create_task(visit(number)) for number in range(80)]
        while rng.random() < 0.9:
            await asyncio.sleep(rng.random() * 0.01)
            rng.choice(tasks).cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
    await wait_until(lambda: not engine.running)
    assert engine.waiting == 0
    answers = await asyncio.gather(*(ask(engine, f"quick {n}") for n in range(8)))
    assert [text for text, _ in answers] == [f"quick {n}" for n in range(8)]


@pytest.mark.long_except("process")
async def test_requests_leave_no_resources_behind(engine: Engine, scale: int) -> None:
    rng = random.Random(13)

    async def use() -> None:
        for number in range(40 * scale):
            async with await engine.generate(request(unique_prompt(number, rng))) as stream:
                await read_some(stream, rng)
            await stream.wait_ended()
            await engine.tokenize("some words")

    def counts() -> dict[str, int]:
        gc.collect()
        return {
            "files": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
            "streams": sum(isinstance(thing, TokenStream) for thing in gc.get_objects()),
        }

    await use()
    # Use all four slots at once, so that their threads exist.
    await asyncio.gather(*(ask(engine, "slow " * 30) for _ in range(8)))
    before = counts()
    await use()
    after = counts()
    assert after["streams"] <= before["streams"] + 1
    for name in ("files", "threads", "tasks"):
        assert after[name] <= before[name], (name, before, after)


@pytest.mark.parametrize("engine", ["process"], indirect=True)
async def test_repeated_kills_of_the_host_fail_only_its_running_requests(
    engine: Engine,
    scale: int,
    monkeypatch: pytest.MonkeyPatch,
    hosts_of: Callable[[int], list[int]],
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 0.01)
    rng = random.Random(17)
    completed = crashed = 0
    stop = False
    reasons: set[str] = set()

    def has_answered(count: int) -> bool:
        return completed >= count

    def has_restarted(count: int) -> bool:
        return engine.restarts >= count

    async def client(number: int) -> None:
        nonlocal completed, crashed
        while not stop:
            prompt = unique_prompt(number, rng)
            text = ""
            try:
                async with await engine.generate(request(prompt)) as stream:
                    async for batch in stream:
                        text += "".join(delta.text for delta in batch)
            except EngineCrashed as error:
                reasons.add(error.message)
                assert prompt.startswith(text)
                crashed += 1
            else:
                assert text == prompt
                completed += 1

    await engine.ready()
    clients = [asyncio.create_task(client(number)) for number in range(6)]
    for kill in range(KILLS * scale):
        answered = completed
        await wait_until(partial(has_answered, answered + 6))
        os.kill(child_pid(engine), signal.SIGKILL)
        await wait_until(partial(has_restarted, kill + 1))
    stop = True
    async with asyncio.timeout(30):
        await asyncio.gather(*clients)
    assert engine.restarts == KILLS * scale
    assert (engine.running, engine.waiting) == (0, 0)
    assert crashed > 0
    assert reasons == {
        "the engine process was killed by SIGKILL while the request was running on it"
    }
    assert (await ask(engine, "quick and whole"))[0] == "quick and whole"
    assert child_pid(engine) in hosts_of(os.getpid())
