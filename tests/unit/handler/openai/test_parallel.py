"""Several answers to one call: in order, and at once where there is room (R5, R18)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine import Priority
from engine.errors import (
    GenerationTimeout,
    ModelLoadFailed,
)
from handler.completed_answer import CompletedAnswer
from handler.openai.call import OpenAICall
from handler.openai.completions import COMPLETIONS as COMPLETIONS_SHAPE
from handler.openai.events import stream_events
from handler.openai.parallel import ParallelGenerations
from handler.openai.service import OpenAIService
from tests.unit.handler.conftest import PipelineFactory
from tests.unit.handler.openai import reading
from tests.unit.handler.openai.calls import (
    CHAT,
    COMPLETIONS,
    Tell,
    idle,
    open_several,
    streamed,
    tell_streamed,
    tell_whole,
)
from tests.waiting import wait_until

HANGING: dict[str, Any] = {"when": "hang", "pieces": [{"hang_s": 3600}]}
TURNS = [{"role": "user", "content": "hi"}]


# -- what is asked of the engine ----------------------------------------------------------------


def seeds(**body: Any) -> list[int | None]:
    codec = OpenAICall(COMPLETIONS_SHAPE, body, "tiny", None)
    return [each.generation.sampling.seed for each in codec.requests]


def test_each_candidate_has_a_seed_of_its_own_and_the_first_the_given_one() -> None:
    # R10, R15: with one seed all would be alike, and n=1 must be the first of n=3.
    assert seeds(prompt="a", seed=7) == [7]
    assert seeds(prompt="a", seed=7, n=3) == [7, 8, 9]
    assert seeds(prompt=["a", "b"], seed=7, best_of=2) == [7, 8, 7, 8]
    assert seeds(prompt="a", n=2) == [None, None]
    largest = seeds(prompt="a", seed=2**63 - 1, n=2)
    assert len(set(largest)) == 2
    assert all(seed is not None and 0 <= seed < 2**63 for seed in largest)


def test_each_request_has_an_id_that_tells_its_call() -> None:
    codec = OpenAICall(COMPLETIONS_SHAPE, {"prompt": ["a", "b"], "n": 2}, "tiny", None)
    ids = [each.generation.request_id for each in codec.requests]
    assert ids == [codec.id, *(f"{codec.id}-{number}" for number in (1, 2, 3))]
    assert {each.generation.priority for each in codec.requests} == {Priority.INTERACTIVE}
    assert [each.generation.prompt for each in codec.requests] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_p": 0}, {"top_k": 1}], ids=str)
async def test_greedy_choices_are_alike_and_that_is_said_once(
    pipeline_of: PipelineFactory, greedy: dict[str, Any]
) -> None:
    # R15
    service = OpenAIService(pipeline_of())
    said = ["all 3 choices are alike: the sampling leaves no choice"]
    for route, body in ((COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": TURNS})):
        asked = {**body, "n": 3, **greedy}
        assert (await tell_whole(service, route, asked)).warnings == said
        assert (await tell_streamed(service, route, asked)).warnings == said
        assert (await tell_whole(service, route, {**body, **greedy})).warnings == []


# -- order and room -----------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 16])
async def test_no_more_at_a_time_than_there_are_slots(
    pipeline_of: PipelineFactory, slots: int
) -> None:
    # R18: the others of the call wait where they keep nobody out.
    pipeline = pipeline_of({"delay_ms": 2}, slots=slots)
    await pipeline.engine.ready()
    generate, seen = pipeline.engine.generate, list[tuple[Any, int, int]]()

    async def watched(request: Any, slot: Any = None, **how: Any) -> Any:
        stream = await generate(request, slot, **how)
        seen.append((request.prompt, pipeline.engine.running, pipeline.engine.waiting))
        return stream

    pipeline.engine.generate = watched  # type: ignore[method-assign]
    prompts = [f"prompt {number}" for number in range(8)]
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    for tell in (tell_whole, tell_streamed):
        told = await tell(service, COMPLETIONS, {"prompt": prompts})
        assert [told.choices[index].text for index in range(8)] == prompts
        assert [prompt for prompt, _, _ in seen] == prompts
        assert max(running for _, running, _ in seen) == min(slots, 8)
        assert {waiting for _, _, waiting in seen} == {0}
        seen.clear()


@pytest.mark.parametrize("tell", [tell_whole, tell_streamed])
async def test_first_call_of_all_waits_to_know_how_many_slots_there_are(
    pipeline_of: PipelineFactory, tell: Tell
) -> None:
    # R18: one that hangs would keep the others out of three free slots.
    pipeline = pipeline_of(HANGING, slots=4, load_ms=50)
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    call = asyncio.create_task(tell(service, COMPLETIONS, {"prompt": ["hang"] * 4}))
    await wait_until(lambda: pipeline.engine.running == 4)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    await idle(pipeline)


@pytest.mark.parametrize("tell", [tell_whole, tell_streamed])
async def test_model_that_is_not_loaded_in_time_or_at_all(
    pipeline_of: PipelineFactory, tell: Tell
) -> None:
    # R30, R54
    body = {"prompt": "hi", "n": 2}
    late = OpenAIService(pipeline_of({}, load_ms=200, request_timeout_s=0.05))
    with pytest.raises(GenerationTimeout, match=r"longer than 0.05 s \(REQUEST_TIMEOUT_S\)"):
        await tell(late, COMPLETIONS, body)
    never = OpenAIService(pipeline_of({}, load_error="no such weights"))
    with pytest.raises(ModelLoadFailed, match="no such weights"):
        await tell(never, COMPLETIONS, body)


async def test_choices_keep_the_order_of_the_prompts_whoever_ends_first(
    pipeline_of: PipelineFactory,
) -> None:
    # R5
    slow = {"when": "slow", "pieces": ["slowly", {"text": " said", "delay_ms": 50}]}
    service = OpenAIService(pipeline_of(slow, {"pieces": ["quick"]}), stream_multi_prompt=True)
    body = {"prompt": ["slow", "other"]}
    whole = await tell_whole(service, COMPLETIONS, body)
    assert [choice.text for choice in whole.choices.values()] == ["slowly said", "quick"]
    told = await tell_streamed(service, COMPLETIONS, body)
    assert told.choices == whole.choices
    ended = [
        chunk["choices"][0]["index"]
        for chunk in told.sent
        if chunk["choices"][0]["finish_reason"] is not None
    ]
    assert ended == [1, 0]


async def test_choices_are_streamed_side_by_side(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["x"], "repeat": 5, "delay_ms": 5}))
    told = await tell_streamed(service, COMPLETIONS, {"prompt": "hi", "n": 2})
    order = [chunk["choices"][0]["index"] for chunk in told.sent]
    assert order not in (sorted(order), sorted(order, reverse=True))


async def test_first_text_of_any_opens_the_stream(pipeline_of: PipelineFactory) -> None:
    # R29, R30
    pipeline = pipeline_of(HANGING, {"pieces": ["x"]})
    service = OpenAIService(pipeline, stream_multi_prompt=True)
    async with asyncio.timeout(5), await open_several(service, {"prompt": ["hang", "other"]}):
        pass
    await idle(pipeline)


async def test_slot_that_is_brought_serves_them_all(pipeline_of: PipelineFactory) -> None:
    # Held on to, it would be the one that they wait for.
    pipeline = pipeline_of({"pieces": ["x"]}, slots=1)
    service = OpenAIService(pipeline)
    async with asyncio.timeout(5):
        slot = await pipeline.engine.reserve(Priority.JOB)
        body = {"prompt": "hi", "n": 2}
        whole = await service.complete(service.parse_call(COMPLETIONS, body), slot)
        assert [choice["text"] for choice in whole["choices"]] == ["x", "x"]
        slot = await pipeline.engine.reserve(Priority.JOB)
        codec = service.parse_call(COMPLETIONS, streamed(body))
        async with await service.open_stream(codec, slot) as running:
            assert isinstance(running, ParallelGenerations)
            parts = [part async for parts in running.batches() for _, part in parts]
            found = [part for part in parts if isinstance(part, CompletedAnswer)]
            assert [answer.text for answer in found] == ["x", "x"]
    await idle(pipeline)


@pytest.mark.parametrize("n", [1, 3])
async def test_interval_holds_for_all_choices_together(
    n: int, pipeline_of: PipelineFactory
) -> None:
    # R29: one choice or several, a block at once and then one an interval, with all that came.
    service = OpenAIService(pipeline_of({"pieces": ["x"], "repeat": 60, "delay_ms": 5}))
    codec = service.parse_call(COMPLETIONS, streamed({"prompt": "hi", "n": n}))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(10), await service.open_stream(codec) as running:
        blocks = [block async for block in stream_events(codec, running, 0.1)]
    # However slow the machine is, an interval has passed between any two.
    assert (len(blocks) - 1) * 0.1 <= loop.time() - began
    told = reading.streamed(blocks)
    assert [choice.text for choice in told.choices.values()] == ["x" * 60] * n
    assert all(block.count(b'"text":"x') <= n for block in blocks)
