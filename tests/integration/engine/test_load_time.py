"""`load_ms` and `queue_ms` distinguish waiting for the model from waiting for a slot."""

from __future__ import annotations

import asyncio

import pytest

from engine import BackendConfig, Engine, GenerationRequest, Timings
from engine.hooks import EngineEvent, RequestStarted
from tests.conftest import EngineFactory, ScriptFactory

LOAD_MS, RUN_MS = 400, 200


async def timings_of(engine: Engine) -> Timings:
    async with await engine.generate(GenerationRequest(prompt="hi")) as stream:
        async for _ in stream:
            pass
    assert stream.result is not None
    return stream.result.timings


@pytest.mark.long_except("process")
@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_waiting_for_the_model_is_load_ms_and_waiting_for_a_slot_queue_ms(
    engine_factory: EngineFactory, script: ScriptFactory, isolation: str
) -> None:
    answer = {"pieces": ["a"], "prefill_ms": RUN_MS}
    path = script(answer, load_ms=LOAD_MS, slots=1)
    events: list[EngineEvent] = []
    backend = BackendConfig.from_wire("scripted", {"model_path": str(path)})
    engine = engine_factory(backend, [events.append], isolation=isolation, slots=1)
    first, second = await asyncio.gather(timings_of(engine), timings_of(engine))
    for timings in (first, second):
        assert timings.load_ms >= LOAD_MS
        waited = timings.queue_ms + timings.load_ms
        total = waited + timings.first_token_ms + timings.generate_ms
        assert timings.total_ms == pytest.approx(total, abs=1)
    assert first.queue_ms < RUN_MS / 2
    assert second.queue_ms >= RUN_MS / 2
    third = await timings_of(engine)
    assert third.load_ms == 0
    assert third.queue_ms < RUN_MS / 2
    started = [event for event in events if isinstance(event, RequestStarted)]
    assert [event.load_s > 0 for event in started] == [True, True, False]
    assert [event.queue_s * 1000 >= RUN_MS / 2 for event in started] == [False, True, False]
