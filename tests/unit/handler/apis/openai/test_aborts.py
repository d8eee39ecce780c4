"""Several answers to one call that end early: all of them end, and nothing stays in use."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine.errors import BackendFailed, EngineError, GenerationCancelled
from handler.apis.openai.service import OpenAIService
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai.calls import (
    COMPLETIONS,
    give_each_choice_a_prompt,
    open_parallel_stream,
    stream_blocks,
    wait_until_idle,
)
from tests.unit.handler.apis.openai.reading import read_chunks, text_of
from tests.unit.handler.conftest import PipelineFactory
from tests.waiting import wait_until

ENDLESS = {"pieces": ["x"], "repeat": -1, "delay_ms": 1}
HANGING: dict[str, Any] = {"when": "hang", "pieces": [{"hang_s": 3600}]}
# Answers that fail before any text, fail after some text, or never end.
FAULTS: list[dict[str, Any]] = [
    {"when": "early", "pieces": [{"error": "out of luck", "delay_ms": 20}]},
    {"when": "late", "pieces": ["one", {"error": "out of luck", "delay_ms": 20}]},
    HANGING,
    ENDLESS,
]


@pytest.mark.parametrize("bad", ["early", "late"])
@pytest.mark.parametrize("slots", [1, 4])
async def test_run_all_cancels_the_others_when_one_fails(
    pipeline_of: PipelineFactory, bad: str, slots: int
) -> None:
    # R30, R31
    pipeline = pipeline_of(*FAULTS, slots=slots)
    service = OpenAIService(pipeline)
    prompts = [bad, "endless", "hang", "endless", "endless"]
    with pytest.raises(BackendFailed, match="out of luck"):
        await service.complete(service.parse_call(COMPLETIONS, {"prompt": prompts}))
    await wait_until_idle(pipeline)


async def test_stream_ends_when_one_generation_fails(pipeline_of: PipelineFactory) -> None:
    # R30, R31
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline)
    give_each_choice_a_prompt(pipeline, ["endless", "late", "hang"])
    body = {"prompt": "hi", "n": 3, "stream": True}
    *chunks, last = read_chunks(await stream_blocks(service, service.parse_call(COMPLETIONS, body)))
    assert last["error"]["message"] == "out of luck"
    texts = [text_of(each["choices"][0]) for each in chunks if each["choices"][0]["index"] == 1]
    assert texts == ["one"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    await wait_until_idle(pipeline)


async def test_open_stream_raises_when_a_generation_fails_before_any_text(
    pipeline_of: PipelineFactory,
) -> None:
    # R30
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline)
    give_each_choice_a_prompt(pipeline, ["hang", "early"])
    with pytest.raises(BackendFailed):
        await service.open_stream(
            service.parse_call(COMPLETIONS, {"prompt": "hi", "n": 2, "stream": True})
        )
    await wait_until_idle(pipeline)


async def test_cancelled_call_cancels_all_generations(pipeline_of: PipelineFactory) -> None:
    # R31: a client that leaves before there is an answer, or any text.
    pipeline = pipeline_of(*FAULTS)
    service = OpenAIService(pipeline)
    for body in ({"prompt": ["endless"] * 6}, {"prompt": "hang", "n": 6, "stream": True}):
        parsed = service.parse_call(COMPLETIONS, body)
        call = asyncio.create_task(
            service.open_stream(parsed) if parsed.streaming else service.complete(parsed)
        )
        await wait_until(lambda: pipeline.engine.running == 4)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await wait_until_idle(pipeline)


@pytest.mark.parametrize("read", [0, 1, 20])
@pytest.mark.parametrize("how", ["abort", "leave", "abort and leave"])
async def test_leaving_the_stream_cancels_all_generations(
    pipeline_of: PipelineFactory, how: str, read: int
) -> None:
    # R31: never read, hardly read, or read so slowly that every stream waits for its reader.
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    running = await open_parallel_stream(service, {"prompt": "hi", "n": 6})
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
    await wait_until_idle(pipeline)


async def test_abort_raises_generation_cancelled_in_the_reader(
    pipeline_of: PipelineFactory,
) -> None:
    # Otherwise the reader would wait forever.
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    several = await open_parallel_stream(service, {"prompt": "hi", "n": 2})
    async with asyncio.timeout(30), several as running:

        async def read() -> None:
            async for _ in running.batches():
                pass

        reading = asyncio.create_task(read())
        await wait_until(lambda: pipeline.engine.running == 2)
        running.abort()
        with pytest.raises(GenerationCancelled):
            await reading
    await wait_until_idle(pipeline)


async def test_abort_after_the_end_has_no_effect(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of({"pieces": ["x"]})
    service = OpenAIService(pipeline)
    async with await open_parallel_stream(service, {"prompt": "hi", "n": 2}) as running:
        result = [part async for parts in running.batches() for part in parts]
        running.abort()
    assert sum(isinstance(part, CompletedAnswer) for _, part in result) == 2
    await wait_until_idle(pipeline)


async def test_engine_close_raises_in_the_reader(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of(ENDLESS)
    service = OpenAIService(pipeline)
    several = await open_parallel_stream(service, {"prompt": "hi", "n": 6})
    async with asyncio.timeout(30), several as running:
        await pipeline.engine.close()
        with pytest.raises(EngineError, match="shutting down"):
            async for _ in running.batches():
                pass


async def test_slow_reader_gets_longer_parts_instead_of_more(
    pipeline_of: PipelineFactory,
) -> None:
    # R29: deltas collect in each stream's own bounded channel while the reader is slow.
    pipeline = pipeline_of({"pieces": ["x"], "repeat": 150, "delay_ms": 1})
    service = OpenAIService(pipeline)
    async with await open_parallel_stream(service, {"prompt": "hi", "n": 2}) as running:
        await wait_until(lambda: not pipeline.engine.running)
        parts = [part async for parts in running.batches() for part in parts]
    texts = ["", ""]
    for index, part in parts:
        if not isinstance(part, CompletedAnswer):
            texts[index] += "".join(delta.text for delta in part)
    assert texts == ["x" * 150] * 2
    assert len(parts) < 30
