"""Every wait has a limit, which its error names, and the engine still works afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from engine import BackendConfig, Engine, EngineConfig, EngineState, Timeouts
from engine.errors import (
    EngineDead,
    EngineReplaced,
    EngineStalled,
    GenerationCancelled,
    GenerationTimeout,
)
from engine.hooks import EngineEvent, HostLost
from tests.conftest import ScriptFactory
from tests.integration.engine.conftest import EngineMaker
from tests.integration.engine.support import ask, child_pid, first_text, read, request
from tests.waiting import WAIT_S, wait_until

FOREVER = {"when": "forever", "pieces": ["on ", "and "], "repeat": -1, "delay_ms": 1}
SILENT = {"when": "silent", "pieces": ["never"], "prefill_ms": 60_000}
STALLING = {"when": "stalling", "pieces": ["one", {"hang_s": 60}, "two"]}
ECHO: dict[str, Any] = {}


def deaf(seconds: float) -> dict[str, Any]:
    # Before the first token, so that no piece can end the run.
    return {"when": "deaf", "pieces": ["x"], "prefill_ms": seconds * 1000, "deaf_prefill": True}


async def test_prefill_that_takes_too_long(engine_of: EngineMaker) -> None:
    engine = engine_of(SILENT, ECHO, slots=1, prefill_timeout_s=0.1)
    with pytest.raises(EngineStalled, match="PREFILL_TIMEOUT_S"):
        await ask(engine, "silent")
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 0


async def test_stall_timeout_applies_after_the_first_token(engine_of: EngineMaker) -> None:
    engine = engine_of(STALLING, ECHO, slots=1, stall_timeout_s=0.2, prefill_timeout_s=100)
    async with await engine.generate(request("stalling")) as stream:
        assert await first_text(stream) == "one"
        async with asyncio.timeout(30):
            with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
                await anext(stream)
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 0


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_delayed_tokens_are_no_stall(engine_of: EngineMaker) -> None:
    """Also with the smallest STALL_TIMEOUT_S that is allowed."""
    steady = {"when": "steady", "pieces": ["on "], "repeat": 100, "delay_ms": 20}
    engine = engine_of(steady, slots=1, stall_timeout_s=0.5)
    async with await engine.generate(request("steady"), buffered=True) as stream:
        assert len(await read(stream)) == 100


async def test_request_that_runs_too_long(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, ECHO, slots=1)
    await engine.ready()
    async with await engine.generate(request("forever", timeout_s=0.2)) as stream:
        with pytest.raises(GenerationTimeout, match=r"longer than 0\.2 s"):
            await read(stream)
    assert (await ask(engine, "next"))[0] == "next"


async def test_request_that_waits_too_long(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, ECHO, slots=1, request_timeout_s=100)
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        with pytest.raises(GenerationTimeout, match=r"longer than 0\.05 s"):
            await engine.generate(request("waiting", timeout_s=0.05))
        assert engine.waiting == 0
    assert (await ask(engine, "next"))[0] == "next"


@pytest.mark.long_except("thread")
async def test_default_limit_applies_to_requests_without_one(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, slots=1, request_timeout_s=0.3)
    await engine.ready()
    with pytest.raises(GenerationTimeout, match=r"longer than 0\.3 s \(REQUEST_TIMEOUT_S\)"):
        await ask(engine, "forever")


@pytest.mark.long_except("thread")
async def test_loading_counts_as_waiting(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, load_ms=1500)
    with pytest.raises(GenerationTimeout):
        await engine.generate(request(timeout_s=0.05))
    assert engine.running == 0


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_other_runs_finish_before_the_process_of_a_stuck_run_is_killed(
    engine_of: EngineMaker,
) -> None:
    steady = {"when": "steady", "pieces": ["on "], "repeat": 100, "delay_ms": 10}
    engine = engine_of(deaf(60), steady, ECHO, slots=3, abort_grace_s=0.2)
    first_child = None
    async with (
        await engine.generate(request("steady")) as neighbour,
        await engine.generate(request("deaf")) as stream,
    ):
        await first_text(neighbour)
        first_child = child_pid(engine)
        stream.abort()
        await wait_until(lambda: "did not stop" in (engine.trouble or ""))
        assert engine.trouble is not None
        assert engine.trouble.startswith("restarting when the other requests have ended, in ")
        # No new run is taken although a slot is free.
        newcomer = asyncio.create_task(ask(engine, "next"))
        assert len(await read(neighbour)) >= 1
        assert neighbour.result is not None
        assert (child_pid(engine), newcomer.done()) == (first_child, False)
    assert (await newcomer)[0] == "next"
    assert (engine.restarts, child_pid(engine) != first_child) == (1, True)


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_other_runs_finish_before_the_process_of_a_stuck_side_call_is_killed(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = {"when": "steady", "pieces": ["on "], "repeat": 100, "delay_ms": 10}
    engine = engine_of(steady, ECHO, slots=2)
    async with await engine.generate(request("steady")) as neighbour:
        await first_text(neighbour)
        engine._host._retire(EngineStalled("the engine did not tokenize"))  # type: ignore[attr-defined]
        await read(neighbour)
        assert neighbour.result is not None
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 1


@pytest.mark.long_except("thread")
@pytest.mark.parametrize("isolation", ["process", "thread"], indirect=True)
async def test_engine_resumes_if_a_stuck_run_stops_after_all(engine_of: EngineMaker) -> None:
    engine = engine_of(
        deaf(1.0),
        FOREVER,
        ECHO,
        slots=2,
        context_length=10**9,
        abort_grace_s=0.2,
    )
    async with (
        await engine.generate(request("forever")) as neighbour,
        await engine.generate(request("deaf")) as stream,
    ):
        await first_text(neighbour)
        stream.abort()
        await wait_until(lambda: engine.state is EngineState.RESTARTING)
        await wait_until(lambda: engine.state is EngineState.READY)
        assert await first_text(neighbour)
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 0


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_stuck_run_ends_the_host_process_but_not_the_engine(engine_of: EngineMaker) -> None:
    events: list[EngineEvent] = []
    engine = engine_of(
        deaf(60),
        FOREVER,
        ECHO,
        slots=2,
        abort_grace_s=0.2,
        neighbour_grace_s=0.2,
        hooks=[events.append],
    )
    first_child = None
    async with (
        await engine.generate(request("forever")) as neighbour,
        await engine.generate(request("deaf")) as stream,
    ):
        first_child = child_pid(engine)
        stream.abort()
        with pytest.raises(EngineReplaced, match=r"did not stop within 0\.2 s of an abort"):
            await read(neighbour)
        with pytest.raises(GenerationCancelled):
            await anext(stream)
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 1
    # A client's abort does not count as a crash.
    assert engine._host._supervisor.losses.policy.crashes_in_a_row == 0  # type: ignore[attr-defined]
    assert child_pid(engine) != first_child
    assert [event.dead for event in events if isinstance(event, HostLost)] == [False]


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_stuck_prefill_gets_its_full_time_before_the_host_is_killed(
    engine_of: EngineMaker,
) -> None:
    slow = {"when": "slow", "pieces": ["x"], "prefill_ms": 700, "deaf_prefill": True}
    engine = engine_of(
        slow,
        ECHO,
        slots=1,
        abort_grace_s=0.1,
        prefill_timeout_s=20,
        capabilities={"abort_in_prefill": False},
    )
    async with await engine.generate(request("slow")) as stream:
        pass
    async with asyncio.timeout(30):
        await stream.wait_ended()
    assert engine.restarts == 0
    assert (await ask(engine, "next"))[0] == "next"


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_frozen_host_is_replaced(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, slots=1, prefill_timeout_s=0.3, abort_grace_s=0.2)
    await engine.ready()
    os.kill(child_pid(engine), signal.SIGSTOP)
    with pytest.raises(EngineStalled, match="PREFILL_TIMEOUT_S"):
        await ask(engine, "frozen")
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 1


@pytest.mark.parametrize("isolation", ["thread"], indirect=True)
async def test_stuck_run_in_a_thread_ends_the_engine_with_a_reason(engine_of: EngineMaker) -> None:
    events: list[EngineEvent] = []
    engine = engine_of(
        deaf(1.5),
        FOREVER,
        slots=2,
        context_length=10**9,
        abort_grace_s=0.2,
        neighbour_grace_s=0.2,
        hooks=[events.append],
    )
    async with (
        await engine.generate(request("forever")) as neighbour,
        await engine.generate(request("deaf")) as stream,
    ):
        stream.abort()
        with pytest.raises(EngineDead, match="ENGINE_ISOLATION=thread cannot restart it"):
            await read(neighbour)
    with pytest.raises(EngineDead, match="did not stop"):
        await engine.generate(request())
    with pytest.raises(EngineDead):
        await engine.ready()
    assert engine.state is EngineState.DEAD
    assert type(engine.failure) is EngineDead
    assert engine.running == 0
    assert [event.dead for event in events if isinstance(event, HostLost)] == [True]
    # The runs that still react were aborted, because they have no reader any more.
    runner = engine._host._runner  # type: ignore[attr-defined]
    await wait_until(lambda: not runner._generations, within_s=30)
    async with asyncio.timeout(30):
        await engine.close()
    assert type(engine.failure) is EngineDead


async def test_close_is_limited_in_time_with_a_stuck_run(engine_of: EngineMaker) -> None:
    engine = engine_of(deaf(4), abort_grace_s=0.2)
    stream = await engine.generate(request("deaf"))
    async with asyncio.timeout(30):
        # Without a limit it would wait for a run that never ends.
        await engine.close()
        await stream.wait_ended()
    assert engine.running == 0


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
async def test_engine_is_dead_after_five_loads_that_take_too_long(
    engine_of: EngineMaker,
) -> None:
    engine = engine_of(ECHO, load_ms=60_000, load_timeout_s=0.05, abort_grace_s=0.1)
    with pytest.raises(EngineDead, match=r"5 times in a row .*LOAD_TIMEOUT_S"):
        await engine.generate(request())
    assert engine.running == 0


@pytest.mark.parametrize("isolation", ["thread"], indirect=True)
async def test_load_that_takes_too_long_in_a_thread_ends_the_engine(engine_of: EngineMaker) -> None:
    # R54: an engine that is not there, not a request that failed.
    engine = engine_of(ECHO, load_ms=500, load_timeout_s=0.05)
    with pytest.raises(EngineDead, match=r"LOAD_TIMEOUT_S"):
        await engine.generate(request())
    assert engine.running == 0


async def test_close_while_loading_leaves_nothing_behind(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, load_ms=300, abort_grace_s=2)
    loading = asyncio.create_task(engine.ready())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await engine.close()
        results = await asyncio.gather(loading, return_exceptions=True)
    assert isinstance(results[0], Exception)
    if engine._host.threaded:
        # The load cannot be stopped, so the model must have been unloaded again.
        assert engine._host._loading.done()  # type: ignore[attr-defined]
        assert engine._host._runner is None  # type: ignore[attr-defined]


def test_run_that_outlives_the_loop_raises_no_error(
    script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread cannot be killed, and its late output has no reader."""
    backend = BackendConfig.from_wire("scripted", {"model_path": str(script(deaf(0.5)))})
    clocks = Timeouts(abort_grace_s=0.05, prefill_timeout_s=0.05)
    engine = Engine(EngineConfig(backend=backend, isolation="thread", timeouts=clocks))

    async def give_up() -> None:
        async with await engine.generate(request("deaf")):
            pass
        await wait_until(lambda: engine.state is EngineState.DEAD)
        await engine.close()

    before = set(threading.enumerate())
    asyncio.run(give_up())
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in left)
    assert [each.message for each in caplog.records if each.name == "common.worker_threads"] == []
