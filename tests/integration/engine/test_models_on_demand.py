"""Models that do not fit together, each in its own process with the scripted backend."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import (
    EMBED,
    BackendConfig,
    Engine,
    EngineConfig,
    EnginePool,
    EngineState,
    GenerationRequest,
    Priority,
)
from engine.errors import GenerationTimeout, ModelLoadFailed, QueueFull
from engine.hooks import EngineEvent, HostLoaded
from engine.models import load_retry
from engine.models.memory import MemoryPlan
from engine.timeouts import Timeouts
from tests.conftest import ScriptFactory
from tests.unit.engine.test_reserve import generate_text
from tests.waiting import wait_until

DEADLINE_S = 40.0
HANG = {"when": "hang", "pieces": ["x"], "repeat": -1, "delay_ms": 5}
MakePool = Callable[..., EnginePool]


@pytest.fixture
async def pool_of(script: ScriptFactory) -> AsyncIterator[MakePool]:
    """Builds pools with memory for one model; keywords are the fields of their scripts."""
    pools: list[EnginePool] = []

    def make(
        *,
        budget: int = 1,
        preloaded: Sequence[str] = (),
        keep_alive_s: float = math.inf,
        max_queue: int = 256,
        **scripts: dict[str, Any],
    ) -> EnginePool:
        configs = {
            name: EngineConfig(
                backend=BackendConfig.from_wire(
                    "scripted", {"model_path": str(script(HANG, {}, **fields)), "model_name": name}
                ),
                timeouts=Timeouts(abort_grace_s=5.0),
                slots=4,
                max_queue=max_queue,
            )
            for name, fields in scripts.items()
        }
        plan = MemoryPlan(
            budget_bytes=budget,
            need_bytes=dict.fromkeys(configs, 1),
            preloaded=preloaded or list(configs)[:1],
            keep_alive_s=keep_alive_s,
        )
        pools.append(EnginePool(configs, memory_plan=plan))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


def processes(pool: EnginePool) -> list[int]:
    """Return the ids of the pool's processes that exist."""
    pids = [pid for engine in pool.engines.values() for pid in engine.pids]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def states(pool: EnginePool) -> list[EngineState]:
    return [engine.state for engine in pool.engines.values()]


READY, OUT, DEAD = EngineState.READY, EngineState.UNLOADED, EngineState.DEAD


async def test_only_the_preloaded_model_is_loaded_at_the_start(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={}, c={})
    assert pool.state is EngineState.LOADING
    pool.spawn()
    await pool.ready()
    assert states(pool) == [READY, OUT, OUT]
    assert pool.state is READY
    assert len(processes(pool)) == 1


async def test_request_loads_its_model_in_place_of_another(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={})
    await pool.ready()
    assert await generate_text(pool.engines["b"], "to b") == "to b"
    assert states(pool) == [OUT, READY]
    assert [each.state for each in pool.engines["a"].instances] == [OUT]
    assert len(processes(pool)) == 1
    assert await generate_text(pool.engines["a"], "to a") == "to a"
    assert states(pool) == [READY, OUT]


async def test_other_calls_load_the_model_too(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={})
    await pool.ready()
    b = pool.engines["b"]
    assert await b.tokenize("one two")
    assert states(pool) == [OUT, READY]
    assert await pool.engines["a"].compute(EMBED, ["one"], Priority.INTERACTIVE)
    assert states(pool) == [READY, OUT]


async def test_capabilities_of_an_unloaded_model_need_no_load(pool_of: MakePool) -> None:
    pool = pool_of(a={"slots": 3}, b={})
    await pool.ready()
    await pool.engines["b"].load()
    assert (await pool.engines["a"].ready()).slots == 3
    assert states(pool) == [OUT, READY]
    assert pool.state is READY


async def test_running_request_keeps_its_model(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={})
    await pool.ready()
    a, b = pool.engines.values()
    stream = await a.generate(GenerationRequest(prompt="hang", request_id="hang"))
    waiting = asyncio.create_task(generate_text(b, "next"))
    await wait_until(lambda: b.waiting == 1)
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    assert a.state is READY
    stream.abort()
    async with asyncio.timeout(DEADLINE_S):
        assert await waiting == "next"


async def test_model_without_requests_is_unloaded_after_its_time(pool_of: MakePool) -> None:
    pool = pool_of(a={}, keep_alive_s=0.1)
    await pool.ready()
    assert await generate_text(pool.engines["a"], "hi") == "hi"
    await wait_until(lambda: states(pool) == [OUT], DEADLINE_S)
    await wait_until(lambda: not processes(pool), DEADLINE_S)
    assert pool.state is READY
    assert await generate_text(pool.engines["a"], "again") == "again"


async def test_model_that_does_not_load_does_not_disturb_the_others(pool_of: MakePool) -> None:
    pool = pool_of(a={}, broken={"load_error": "no such chip"}, c={})
    await pool.ready()
    a, broken, c = pool.engines.values()
    with pytest.raises(ModelLoadFailed, match="no such chip"):
        await generate_text(broken, "hi")
    assert broken.state is DEAD
    assert broken.failure is not None
    assert await generate_text(c, "to c") == "to c"
    assert await generate_text(a, "to a") == "to a"
    with pytest.raises(ModelLoadFailed, match="no such chip"):
        await generate_text(broken, "hi")
    assert pool.state is READY


async def test_model_without_a_file_does_not_unload_the_others(
    pool_of: MakePool, tmp_path: Path
) -> None:
    pool = pool_of(a={})
    await pool.ready()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    for name, path, reason in (
        ("gone", tmp_path / "gone.json", "is missing"),
        ("damaged", damaged, "cannot be read as a GGUF"),
    ):
        backend = BackendConfig.from_wire("scripted", {"model_path": str(path), "model_name": name})
        engine = pool.add(name, EngineConfig(backend=backend), 1)
        with pytest.raises(ModelLoadFailed) as caught:
            await generate_text(engine, "hi")
        assert caught.value.message == f"the file of the model {name} {reason}"
    assert states(pool) == [READY, OUT, OUT]
    assert pool.restarts == 0


async def test_reason_of_a_failed_load_names_the_model_and_no_folder(
    pool_of: MakePool, tmp_path: Path
) -> None:
    pool = pool_of(a={})
    await pool.ready()
    path = tmp_path / "script.json"
    path.write_text("no JSON")
    backend = BackendConfig.from_wire("scripted", {"model_path": str(path), "model_name": "b"})
    b = pool.add("b", EngineConfig(backend=backend), 1)
    with pytest.raises(ModelLoadFailed) as caught:
        await generate_text(b, "hi")
    assert caught.value.message.startswith(
        "the model b cannot be loaded: MODEL_PATH: script.json is not a script: "
    )
    assert str(tmp_path) not in str(caught.value.details)


async def test_model_that_did_not_load_is_tried_again_after_a_pause(
    pool_of: MakePool, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(a={})
    await pool.ready()
    path = script({}, load_error="no such chip")
    backend = BackendConfig.from_wire("scripted", {"model_path": str(path), "model_name": "b"})
    b = pool.add("b", EngineConfig(backend=backend), 1)
    monkeypatch.setattr(load_retry, "FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(load_retry, "MAX_PAUSE_S", 1000.0)
    when = r"no such chip.*; a request in (\d+) s or later tries it again$"
    with pytest.raises(ModelLoadFailed, match=when):
        await generate_text(b, "hi")
    assert await generate_text(pool.engines["a"], "to a") == "to a"
    path.write_text("{}")
    # Within the pause, nothing is loaded or unloaded.
    with pytest.raises(ModelLoadFailed, match=when):
        await generate_text(b, "hi")
    with pytest.raises(ModelLoadFailed, match=when):
        await b.tokenize("hi")
    assert states(pool) == [READY, DEAD]
    b._memory.load_retry._retry_at = 0.0
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(generate_text(b, text) for text in ("one", "two")))
    assert answers == ["one", "two"]
    assert states(pool) == [OUT, READY]


async def test_pool_of_a_broken_default_model_tries_the_others(pool_of: MakePool) -> None:
    pool = pool_of(broken={"load_error": "no such chip"}, fine={"slots": 2})
    pool.spawn()
    assert (await pool.ready()).slots == 2
    assert states(pool) == [DEAD, READY]


async def test_killed_load_is_repeated(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={"load_ms": 600})
    await pool.ready()
    b = pool.engines["b"]
    answer = asyncio.create_task(generate_text(b, "to b"))
    pid = (await wait_until(lambda: list(b.pids) or None, DEADLINE_S))[0]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        assert await answer == "to b"
    assert b.restarts == 1
    assert states(pool) == [OUT, READY]
    assert await generate_text(pool.engines["a"], "to a") == "to a"


async def test_waiting_requests_are_bounded_and_time_out(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={}, max_queue=1)
    await pool.ready()
    a, b = pool.engines.values()
    stream = await a.generate(GenerationRequest(prompt="hang", request_id="hang"))
    first = asyncio.create_task(
        b.generate(GenerationRequest(prompt="late", request_id="late", timeout_s=0.5))
    )
    await wait_until(lambda: b.waiting == 1)
    with pytest.raises(QueueFull):
        await b.tokenize("too many")
    with pytest.raises(GenerationTimeout):
        await first
    stream.abort()
    assert await generate_text(a, "to a") == "to a"
    assert a.state is READY


async def test_requests_of_many_clients_are_all_answered(pool_of: MakePool) -> None:
    pool = pool_of(a={}, b={}, c={})
    await pool.ready()
    order = random.Random(7)
    requests = iter([order.choice("abc") for _ in range(40)])
    answers: list[str] = []

    async def client() -> None:
        for name in requests:
            engine: Engine = pool.engines[name]
            answers.append(await generate_text(engine, f"to {name}"))
            assert len(processes(pool)) == 1

    async with asyncio.timeout(DEADLINE_S * 2):
        await asyncio.gather(*(client() for _ in range(8)))
    assert len(answers) == 40
    assert all(engine.waiting == engine.running == 0 for engine in pool.engines.values())


async def test_added_model_is_loaded_on_demand_and_reports_events(
    pool_of: MakePool, script: ScriptFactory
) -> None:
    pool = pool_of(a={})
    events: list[EngineEvent] = []
    pool.subscribe(events.append)
    await pool.ready()
    path = script({"pieces": ["new"]})
    backend = BackendConfig.from_wire("scripted", {"model_path": str(path), "model_name": "new"})
    added = pool.add("new", EngineConfig(backend=backend), 1)
    assert pool.engines["new"] is added
    assert states(pool) == [READY, OUT]
    assert await generate_text(added, "hi") == "new"
    assert states(pool) == [OUT, READY]
    assert sum(isinstance(each, HostLoaded) for each in events) == 2
