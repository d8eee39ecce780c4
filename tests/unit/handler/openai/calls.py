"""Calls of OpenAI's routes, answered in both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from handler.openai.call import OpenAICall
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.events import stream_events
from handler.openai.parallel import ParallelGenerations
from handler.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.unit.handler.openai import reading
from tests.unit.handler.openai.reading import Told
from tests.waiting import wait_until

Tell = Callable[[OpenAIService, str, dict[str, Any]], Coroutine[Any, Any, Told]]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


async def tell_whole(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> Told:
    return reading.whole(await service.complete(service.parse_call(route, body, dialect)))


async def tell_streamed(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> Told:
    return reading.streamed(
        await blocks_of(service, service.parse_call(route, streamed(body), dialect))
    )


async def blocks_of(service: OpenAIService, codec: OpenAICall) -> list[bytes]:
    async with await service.open_stream(codec) as running:
        return [block async for block in stream_events(codec, running)]


def streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True}


async def idle(pipeline: Pipeline) -> None:
    """Wait until every slot is free and nobody waits for one, and no task is left but this."""
    engine = pipeline.engine
    await wait_until(
        lambda: not (engine.running or engine.waiting) and len(asyncio.all_tasks()) == 1
    )


async def open_several(service: OpenAIService, body: dict[str, Any]) -> ParallelGenerations:
    running = await service.open_stream(service.parse_call(COMPLETIONS, streamed(body)))
    assert isinstance(running, ParallelGenerations)
    return running
