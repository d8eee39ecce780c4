"""Run calls of the OpenAI service, streamed and not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from handler.apis.core.parallel import ParallelGenerations
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.unit.handler.apis.openai import reading
from tests.unit.handler.apis.openai.reading import ReadResponse
from tests.waiting import wait_until

Complete = Callable[[OpenAIService, str, dict[str, Any]], Coroutine[Any, Any, ReadResponse]]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


async def complete(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> ReadResponse:
    return reading.read_response(await service.complete(service.parse_call(route, body, dialect)))


async def complete_streamed(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> ReadResponse:
    return reading.read_stream(
        await stream_blocks(service, service.parse_call(route, with_stream(body), dialect))
    )


async def stream_blocks(service: OpenAIService, call: OpenAICall) -> list[bytes]:
    async with await service.open_stream(call) as running:
        return [block async for block in stream_events(call, running)]


def with_stream(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True}


def give_each_choice_a_prompt(pipeline: Pipeline, prompts: Sequence[str]) -> None:
    """Run the next choices with these prompts, so that choices of one call answer differently."""
    engine = pipeline.engine
    generate, remaining = engine.generate, iter(prompts)

    async def generate_next(request: Any, *args: Any, **options: Any) -> Any:
        prompt = next(remaining, request.prompt)
        return await generate(replace(request, prompt=prompt), *args, **options)

    engine.generate = generate_next  # type: ignore[method-assign]


async def wait_until_idle(pipeline: Pipeline) -> None:
    """Wait until no request runs or waits and no other task is left."""
    engine = pipeline.engine
    await wait_until(
        lambda: not (engine.running or engine.waiting) and len(asyncio.all_tasks()) == 1
    )


async def open_parallel_stream(service: OpenAIService, body: dict[str, Any]) -> ParallelGenerations:
    running = await service.open_stream(service.parse_call(COMPLETIONS, with_stream(body)))
    assert isinstance(running, ParallelGenerations)
    return running
