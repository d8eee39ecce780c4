"""Two copies of a model and two models on the fake library, each in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from engine import BackendConfig, Engine, EngineConfig, EnginePool, EngineState, Priority
from engine.backends.options import RkllmOptions
from engine.errors import EngineCrashed, ModelLoadFailed
from tests.conftest import EngineFactory
from tests.fake_rkllm import read_log
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.support import ask, first_text, read, request
from tests.waiting import wait_until

# Every answer contains the init parameters; the answer to "on" is endless.
SCRIPT = r"""
answer when="on"
  say "\{ns} " us=1000 times=10000000
answer
  say "\{seen}"
"""
SLOTS = 2


def rkllm_options(model: Path, library: Path, domain: int) -> RkllmOptions:
    return RkllmOptions(
        model_path=str(model),
        model_name=model.stem,
        lib_path=str(library),
        base_domain_id=domain,
    )


def backend(model: Path, library: Path, domain: int) -> BackendConfig:
    return BackendConfig(rkllm_options(model, library, domain))


@pytest.fixture
async def pair(
    engine_factory: EngineFactory,
    library: Path,
    model: Callable[[str], Path],
    fast_restarts: None,
    call_log: Path,
) -> Engine:
    """Two copies of one model, both loaded."""
    path = model(SCRIPT)
    first, second = (backend(path, library, domain) for domain in (3, 4))
    engine = engine_factory(first, copies=(second,))
    await engine.ready()
    await wait_until(lambda: engine.slots == SLOTS)
    return engine


def pids(log: Path, call: str) -> list[int]:
    """Return the processes that have called the runtime, in order."""
    return [each.pid for each in read_log(log) if each.name == call]


async def domain_of(engine: Engine) -> int:
    text, _ = await ask(engine, "who?")
    domain: int = json.loads(text)["base_domain_id"]
    return domain


async def test_copies_run_in_parallel_in_separate_domains(pair: Engine, call_log: Path) -> None:
    assert len({os.getpid(), *pids(call_log, "rkllm_init")}) == SLOTS + 1
    async with await pair.generate(request("on and on")) as stream:
        await first_text(stream)
        assert [instance.running for instance in pair.instances] == [1, 0]
        # The first copy is busy, so the other one is used.
        assert await domain_of(pair) == 4
    await wait_until(lambda: pair.running == 0)
    assert await domain_of(pair) == 3


@pytest.mark.long
async def test_admission_is_one_for_all_copies(pair: Engine) -> None:
    # R40: by priority, whichever copy becomes free.
    streams = [await pair.generate(request("on and on")) for _ in range(SLOTS)]
    order: list[Priority] = []

    async def wait(priority: Priority) -> None:
        await ask(pair, "who?", priority=priority)
        order.append(priority)

    waiting = [
        asyncio.create_task(wait(each))
        for each in (Priority.BATCH, Priority.JOB, Priority.INTERACTIVE)
    ]
    await wait_until(lambda: pair.waiting == 3)
    assert [instance.running for instance in pair.instances] == [1, 1]
    streams[1].abort()
    await asyncio.gather(*waiting)
    assert order == sorted(Priority)
    streams[0].abort()
    await wait_until(lambda: pair.running == 0)


@pytest.mark.long
async def test_killed_copy_fails_only_its_own_request(pair: Engine, call_log: Path) -> None:
    first = await pair.generate(request("on and on"))
    await first_text(first)
    pid = pids(call_log, "rkllm_run")[-1]
    second = await pair.generate(request("on and on"))
    await first_text(second)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineCrashed):
        await read(first)
    # No request is admitted for the lost slot.
    assert (pair.state, pair.slots) == (EngineState.READY, 1)
    assert [instance.state for instance in pair.instances] == ["restarting", "ready"]
    await first_text(second)
    second.abort()
    await wait_until(lambda: pair.slots == SLOTS)
    assert pair.restarts == 1
    assert await domain_of(pair) == 3


def pool_of(library: Path, **models: Path) -> EnginePool:
    """Return models with separate domains, numbered from 0."""
    return EnginePool(
        {
            name: EngineConfig(backend=backend(path, library, domain))
            for domain, (name, path) in enumerate(models.items())
        }
    )


async def test_killed_model_is_restarted(
    library: Path, model: Callable[[str], Path], call_log: Path, fast_restarts: None
) -> None:
    pool = pool_of(library, first=model(SCRIPT), second=model(SCRIPT))
    try:
        assert [await domain_of(engine) for engine in pool.engines.values()] == [0, 1]
        os.kill([*dict.fromkeys(pids(call_log, "rkllm_run"))][1], signal.SIGKILL)
        await wait_until(lambda: pool.restarts == 1)
        assert pool.engines["first"].restarts == 0
        assert await domain_of(pool.engines["second"]) == 1
    finally:
        await pool.close()


async def test_death_of_one_model_does_not_stop_the_other(
    library: Path, model: Callable[[str], Path], fast_restarts: None
) -> None:
    fine, broken = model(SCRIPT), model("init fails=-7\nanswer\n  say null\n")
    pool = pool_of(library, broken=broken, fine=fine)
    try:
        await pool.ready()
        with pytest.raises(ModelLoadFailed, match="rkllm_init failed with -7"):
            await ask(pool.engines["broken"])
        assert await domain_of(pool.engines["fine"]) == 1
        assert (pool.state, pool.slots) == (EngineState.READY, 1)
    finally:
        await pool.close()


@pytest.mark.long
async def test_each_copy_has_n_batch_slots(
    engine_factory: EngineFactory,
    library: Path,
    model: Callable[[str], Path],
    tmp_path: Path,
    fast_restarts: None,
) -> None:
    write_tokenizer(tmp_path)
    path = model('answer\n  say "\\{i} " us=1000 times=asked\n')
    first, second = (
        BackendConfig(replace(rkllm_options(path, library, domain), n_batch=3)) for domain in (3, 4)
    )
    engine = engine_factory(first, copies=(second,))
    await engine.ready()
    await wait_until(lambda: engine.slots == 2 * 3)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(await engine.generate(request((number, 200))))
            for number in range(6)
        ]
        assert [each.running for each in engine.instances] == [3, 3]
        answers = await asyncio.gather(*(read(stream) for stream in streams))
    complete_text = "".join(f"{number} " for number in range(200))
    assert ["".join(delta.text for delta in answer) for answer in answers] == [complete_text] * 6
