"""Several answers to one call that end before they are whole: all of them, leaving nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine.errors import BackendFailed, EngineError, GenerationCancelled
from handler.completed_answer import CompletedAnswer
from handler.openai.service import OpenAIService
from tests.unit.handler.conftest import PipelineFactory
from tests.unit.handler.openai.calls import COMPLETIONS, blocks_of, idle, open_several
from tests.unit.handler.openai.reading import chunks_of, text_of
from tests.waiting import wait_until

ENDLESS = {"pieces": ["x"], "repeat": -1, "delay_ms": 1}
HANGING: dict[str, Any] = {"when": "hang", "pieces": [{"hang_s": 3600}]}
# Three of a call, which ends each in its own way: before any text, after some, or never.
FAULTS: list[dict[str, Any]] = [
    {"when": "early", "pieces": [{"error": "out of luck", "delay_ms": 20}]},
    {"when": "late", "pieces": ["one", {"error": "out of luck", "delay_ms": 20}]},
    HANGING,
    ENDLESS,
]


@pytest.mark.parametrize("bad", ["early", "late"])
@pytest.mark.parametrize("slots", [1, 4])
async def test_one_that_fails_ends_the_others(
    pipeline_of: PipelineFactory, bad: str, slots: int
) -> None:
    # R30, R31
    pipeline = pipeline_of(*FAULTS, slots=slots)
    service = OpenAIService(pipeline)
    prompts = [bad, "endless", "hang", "endless", "endless"]
    with pytest.raises(BackendFailed, match="out of luck"):
        await service.complete(service.parse_call(COMPLETIONS, {"prompt": prompts}))
    await idle(pipeline)


async def test_one_that_fails_in_mid_stream_is_the_end_of_all(pipeline_of: PipelineFactory) -> None:
    # R30, R31
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    body = {"prompt": ["endless", "late", "hang"], "stream": True}
    *chunks, last = chunks_of(await blocks_of(service, service.parse_call(COMPLETIONS, body)))
    assert last["error"]["message"] == "out of luck"
    texts = [text_of(each["choices"][0]) for each in chunks if each["choices"][0]["index"] == 1]
    assert texts == ["one"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    await idle(pipeline)


async def test_one_that_fails_before_any_text_is_no_stream(pipeline_of: PipelineFactory) -> None:
    # R30
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    with pytest.raises(BackendFailed):
        await service.open_stream(
            service.parse_call(COMPLETIONS, {"prompt": ["hang", "early"], "stream": True})
        )
    await idle(pipeline)


async def test_call_that_is_cancelled_ends_them_all(pipeline_of: PipelineFactory) -> None:
    # R31: a client that leaves before there is an answer, or any text.
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    for body in ({"prompt": ["endless"] * 6}, {"prompt": ["hang"] * 6, "stream": True}):
        codec = service.parse_call(COMPLETIONS, body)
        call = asyncio.create_task(
            service.open_stream(codec) if codec.streaming else service.complete(codec)
        )
        await wait_until(lambda: pipeline.engine.running == 4)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await idle(pipeline)


@pytest.mark.parametrize("read", [0, 1, 20])
@pytest.mark.parametrize("how", ["abort", "leave", "abort and leave"])
async def test_stream_that_is_left_ends_them_all(
    pipeline_of: PipelineFactory, how: str, read: int
) -> None:
    # R31: never read, hardly, or so slowly that every stream of it waits for its reader.
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    running = await open_several(service, {"prompt": "hi", "n": 6})
    batches = running.batches()
    for _ in range(read):
        await anext(batches)
    await asyncio.sleep(0.1 if read else 0)
    if "abort" in how:
        running.abort()
        running.abort()
    if "leave" in how:
        async with running:
            pass
    await idle(pipeline)


async def test_reader_is_told_of_an_abort(pipeline_of: PipelineFactory) -> None:
    # As of one stream's: it would wait for ever.
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    several = await open_several(service, {"prompt": "hi", "n": 2})
    async with asyncio.timeout(5), several as running:

        async def read() -> None:
            async for _ in running.batches():
                pass

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        running.abort()
        with pytest.raises(GenerationCancelled):
            await reading
    await idle(pipeline)


async def test_abort_of_what_is_over_changes_nothing(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of({"pieces": ["x"]})
    service = OpenAIService(pipeline)
    async with await open_several(service, {"prompt": "hi", "n": 2}) as running:
        found = [part async for parts in running.batches() for part in parts]
        running.abort()
    assert sum(isinstance(part, CompletedAnswer) for _, part in found) == 2
    await idle(pipeline)


async def test_engine_that_closes_is_told_to_the_reader(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    several = await open_several(service, {"prompt": "hi", "n": 6})
    async with asyncio.timeout(5), several as running:
        await pipeline.engine.close()
        with pytest.raises(EngineError, match="shutting down"):
            async for _ in running.batches():
                pass


async def test_slow_reader_finds_longer_parts_and_not_more_of_them(
    pipeline_of: PipelineFactory,
) -> None:
    # R29: what comes meanwhile gathers in each stream's own channel, which has a bound.
    service = OpenAIService(pipeline_of({"pieces": ["x"], "repeat": 150, "delay_ms": 1}))
    async with await open_several(service, {"prompt": "hi", "n": 2}) as running:
        await asyncio.sleep(0.5)
        parts = [part async for parts in running.batches() for part in parts]
    texts = ["", ""]
    for index, part in parts:
        if not isinstance(part, CompletedAnswer):
            texts[index] += "".join(delta.text for delta in part)
    assert texts == ["x" * 150] * 2
    assert len(parts) < 30
