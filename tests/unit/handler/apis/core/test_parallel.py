"""Several answers to one call: in order, and in parallel where slots are free (R5, R18)."""

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
from handler.apis.core.best_of import build_requests
from handler.apis.core.parallel import ParallelGenerations
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.completions import COMPLETIONS as COMPLETIONS_SHAPE
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai import reading
from tests.unit.handler.apis.openai.calls import (
    CHAT,
    COMPLETIONS,
    Complete,
    complete,
    complete_streamed,
    give_each_choice_a_prompt,
    open_parallel_stream,
    wait_until_idle,
    with_stream,
)
from tests.unit.handler.conftest import PipelineFactory
from tests.waiting import wait_until

HANGING: dict[str, Any] = {"when": "hang", "pieces": [{"hang_s": 3600}]}
TURNS = [{"role": "user", "content": "hi"}]


# -- requests to the engine ---------------------------------------------------------------------


def seeds(**body: Any) -> list[int | None]:
    call = OpenAICall(COMPLETIONS_SHAPE, body, "tiny")
    return [each.generation.sampling.seed for each in build_requests(call.parsed)]


def test_first_candidate_has_the_requested_seed_and_others_their_own() -> None:
    # R10, R15: with one seed all would be alike, and n=1 must be the first of n=3.
    assert seeds(prompt="a", seed=7) == [7]
    assert seeds(prompt="a", seed=7, n=3) == [7, 8, 9]
    assert seeds(prompt=["a", "b"], seed=7, best_of=2) == [7, 8, 7, 8]
    assert seeds(prompt="a", n=2) == [None, None]
    largest = seeds(prompt="a", seed=2**63 - 1, n=2)
    assert len(set(largest)) == 2
    assert all(seed is not None and 0 <= seed < 2**63 for seed in largest)


def test_request_ids_start_with_the_call_id() -> None:
    call = OpenAICall(COMPLETIONS_SHAPE, {"prompt": ["a", "b"], "n": 2}, "tiny")
    requests = build_requests(call.parsed)
    ids = [each.generation.request_id for each in requests]
    assert ids == [call.parsed.id, *(f"{call.parsed.id}-{number}" for number in (1, 2, 3))]
    assert {each.generation.priority for each in requests} == {Priority.INTERACTIVE}
    assert [each.generation.prompt for each in requests] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_p": 0}, {"top_k": 1}], ids=str)
async def test_greedy_choices_are_equal_and_cause_one_warning(
    pipeline_of: PipelineFactory, greedy: dict[str, Any]
) -> None:
    # R15
    service = OpenAIService(pipeline_of())
    warnings = ["all 3 choices are alike: the sampling leaves no choice"]
    for route, body in ((COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": TURNS})):
        greedy_body = {**body, "n": 3, **greedy}
        assert (await complete(service, route, greedy_body)).warnings == warnings
        assert (await complete_streamed(service, route, greedy_body)).warnings == warnings
        assert (await complete(service, route, {**body, **greedy})).warnings == []


# -- order and room -----------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 16])
async def test_run_all_submits_at_most_one_request_per_slot(
    pipeline_of: PipelineFactory, slots: int
) -> None:
    # R18: the call's other requests wait outside the engine's queue.
    pipeline = pipeline_of({"delay_ms": 2}, slots=slots)
    await pipeline.engine.ready()
    generate, submitted = pipeline.engine.generate, list[tuple[Any, int, int]]()

    async def watched(request: Any, slot: Any = None, **how: Any) -> Any:
        stream = await generate(request, slot, **how)
        submitted.append((request.prompt, pipeline.engine.running, pipeline.engine.waiting))
        return stream

    pipeline.engine.generate = watched  # type: ignore[method-assign]
    prompts = [f"prompt {number}" for number in range(8)]
    service = OpenAIService(pipeline)
    for complete_call in (complete, complete_streamed):
        give_each_choice_a_prompt(pipeline, prompts)
        response = await complete_call(service, COMPLETIONS, {"prompt": "hi", "n": 8})
        assert [response.choices[index].text for index in range(8)] == prompts
        assert [prompt for prompt, _, _ in submitted] == prompts
        assert max(running for _, running, _ in submitted) == min(slots, 8)
        assert {waiting for _, _, waiting in submitted} == {0}
        submitted.clear()


@pytest.mark.parametrize("complete_call", [complete, complete_streamed])
async def test_first_call_waits_for_the_number_of_slots(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R18: a hanging request must not keep the others out of three free slots.
    pipeline = pipeline_of(HANGING, slots=4, load_ms=50)
    service = OpenAIService(pipeline)
    call = asyncio.create_task(complete_call(service, COMPLETIONS, {"prompt": "hang", "n": 4}))
    await wait_until(lambda: pipeline.engine.running == 4)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    await wait_until_idle(pipeline)


@pytest.mark.parametrize("complete_call", [complete, complete_streamed])
async def test_model_that_is_not_loaded_raises(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R30, R54
    body = {"prompt": "hi", "n": 2}
    late = OpenAIService(pipeline_of({}, load_ms=200, request_timeout_s=0.05))
    with pytest.raises(GenerationTimeout, match=r"longer than 0.05 s \(REQUEST_TIMEOUT_S\)"):
        await complete_call(late, COMPLETIONS, body)
    never = OpenAIService(pipeline_of({}, load_error="no such weights"))
    with pytest.raises(ModelLoadFailed, match="no such weights"):
        await complete_call(never, COMPLETIONS, body)


async def test_choices_keep_their_order(
    pipeline_of: PipelineFactory,
) -> None:
    # R5
    slow = {"when": "slow", "pieces": ["slowly", {"text": " said", "delay_ms": 50}]}
    pipeline = pipeline_of(slow, {"pieces": ["quick"]})
    service = OpenAIService(pipeline)
    full = await complete(service, COMPLETIONS, {"prompt": ["slow", "other"]})
    assert [choice.text for choice in full.choices.values()] == ["slowly said", "quick"]
    give_each_choice_a_prompt(pipeline, ["slow", "other"])
    response = await complete_streamed(service, COMPLETIONS, {"prompt": "hi", "n": 2})
    assert response.choices == full.choices
    ended = [
        chunk["choices"][0]["index"]
        for chunk in response.sent
        if chunk["choices"][0]["finish_reason"] is not None
    ]
    assert ended == [1, 0]


async def test_choices_are_streamed_in_parallel(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["x"], "repeat": 5, "delay_ms": 5}))
    response = await complete_streamed(service, COMPLETIONS, {"prompt": "hi", "n": 2})
    order = [chunk["choices"][0]["index"] for chunk in response.sent]
    assert order not in (sorted(order), sorted(order, reverse=True))


async def test_stream_opens_with_the_first_text_of_any_choice(pipeline_of: PipelineFactory) -> None:
    # R29, R30
    pipeline = pipeline_of(HANGING, {"pieces": ["x"]})
    service = OpenAIService(pipeline)
    give_each_choice_a_prompt(pipeline, ["hang", "other"])
    async with (
        asyncio.timeout(30),
        await open_parallel_stream(service, {"prompt": "hi", "n": 2}),
    ):
        pass
    await wait_until_idle(pipeline)


async def test_reserved_slot_is_released_for_all_generations(pipeline_of: PipelineFactory) -> None:
    # If the call kept its slot, the other requests would wait for it.
    pipeline = pipeline_of({"pieces": ["x"]}, slots=1)
    service = OpenAIService(pipeline)
    async with asyncio.timeout(30):
        slot = await pipeline.engine.reserve(Priority.JOB)
        body = {"prompt": "hi", "n": 2}
        full = await service.complete(service.parse_call(COMPLETIONS, body), slot)
        assert [choice["text"] for choice in full["choices"]] == ["x", "x"]
        slot = await pipeline.engine.reserve(Priority.JOB)
        call = service.parse_call(COMPLETIONS, with_stream(body))
        async with await service.open_stream(call, slot) as running:
            assert isinstance(running, ParallelGenerations)
            parts = [part async for parts in running.batches() for _, part in parts]
            result = [part for part in parts if isinstance(part, CompletedAnswer)]
            assert [answer.text for answer in result] == ["x", "x"]
    await wait_until_idle(pipeline)


@pytest.mark.parametrize("n", [1, 3])
async def test_interval_applies_to_all_choices_together(
    n: int, pipeline_of: PipelineFactory
) -> None:
    # R29: one choice or several, a block immediately, then one per interval with all new deltas.
    service = OpenAIService(pipeline_of({"pieces": ["x"], "repeat": 60, "delay_ms": 5}))
    call = service.parse_call(COMPLETIONS, with_stream({"prompt": "hi", "n": n}))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(30), await service.open_stream(call) as running:
        blocks = [block async for block in stream_events(call, running, 0.1)]
    # However slow the machine is, an interval has passed between any two.
    assert (len(blocks) - 1) * 0.1 <= loop.time() - began
    response = reading.read_stream(blocks)
    assert [choice.text for choice in response.choices.values()] == ["x" * 60] * n
    assert all(block.count(b'"text":"x') <= n for block in blocks)
