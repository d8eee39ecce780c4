"""Calls of OpenAI's routes, answered in both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from handler.openai.call import Codec
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.parallel import Several
from handler.openai.service import OpenAIService, events
from handler.pipeline import Pipeline
from tests.unit.handler.openai import reading
from tests.unit.handler.openai.reading import Told
from tests.waiting import until

Tell = Callable[[OpenAIService, str, dict[str, Any]], Coroutine[Any, Any, Told]]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


async def tell_whole(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> Told:
    return reading.whole(await service.whole(service.codec(route, body, dialect)))


async def tell_streamed(
    service: OpenAIService, route: str, body: dict[str, Any], dialect: Dialect = OPENAI
) -> Told:
    return reading.streamed(await blocks_of(service, service.codec(route, streamed(body), dialect)))


async def blocks_of(service: OpenAIService, codec: Codec) -> list[bytes]:
    async with await service.open(codec) as running:
        return [block async for block in events(codec, running)]


def streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True}


async def idle(pipeline: Pipeline) -> None:
    """Wait until every slot is free and nobody waits for one, and no task is left but this."""
    engine = pipeline.engine
    await until(lambda: not (engine.running or engine.waiting) and len(asyncio.all_tasks()) == 1)


async def open_several(service: OpenAIService, body: dict[str, Any]) -> Several:
    running = await service.open(service.codec(COMPLETIONS, streamed(body)))
    assert isinstance(running, Several)
    return running
