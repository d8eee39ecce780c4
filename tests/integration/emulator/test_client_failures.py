"""What OpenAI's client raises if a model fails late, or if the server ends, on all its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from handler.errors import UNAVAILABLE
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

PREFIXES = ["/v1", "/v2/default/openai/v1"]
USER: Any = [{"role": "user", "content": "hi"}]
BROKEN = ["some", {"error": "out of memory", "delay_ms": 30}]
HANGING = ["some", {"hang_s": 3600}]


async def create_chat(client: AsyncOpenAI, stream: bool) -> Any:
    return await client.chat.completions.create(model="m", messages=USER, stream=stream)


async def create_completion(client: AsyncOpenAI, stream: bool) -> Any:
    return await client.completions.create(model="m", prompt="hi", stream=stream)


async def create_response(client: AsyncOpenAI, stream: bool) -> Any:
    return await client.responses.create(model="m", input="hi", stream=stream)


CREATE: list[Callable[[AsyncOpenAI, bool], Awaitable[Any]]] = [
    create_chat,
    create_completion,
    create_response,
]
calls = pytest.mark.parametrize("create", CREATE)
routes = pytest.mark.parametrize("prefix", PREFIXES)


def client_of(server: Server, prefix: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url + prefix, api_key="any", max_retries=0)


async def read_to_error(chunks: AsyncIterator[Any]) -> str:
    """Read a stream to its error, and return the sentence that the client reports."""
    try:
        async for chunk in chunks:
            if getattr(chunk, "type", "") == "response.failed":
                return str(chunk.response.error.message)
    except openai.APIError as error:
        return error.message
    raise AssertionError("the stream looks like a complete answer")


@routes
@calls
async def test_client_reads_an_answer_whole_and_streamed(
    serve: Serve, script: ScriptFactory, prefix: str, create: Any
) -> None:
    server = await serve(script({"pieces": ["Good", " day"]}), model_name="m")
    async with client_of(server, prefix) as client:
        whole = await create(client, False)
        chunks = [chunk async for chunk in await create(client, True)]
    if create is create_response:
        assert whole.output_text == chunks[-1].response.output_text == "Good day"
        assert chunks[-1].type == "response.completed"
    else:
        assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


@routes
@calls
async def test_client_raises_the_late_failure_of_a_model(
    serve: Serve, script: ScriptFactory, prefix: str, create: Any
) -> None:
    server = await serve(script({"pieces": BROKEN}), model_name="m")
    async with client_of(server, prefix) as client:
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await create(client, False)
        assert "out of memory" in await read_to_error(await create(client, True))


@routes
@calls
async def test_client_raises_the_end_of_the_server(
    serve: Serve, script: ScriptFactory, prefix: str, create: Any
) -> None:
    server = await serve(script({"pieces": HANGING}), model_name="m")
    async with client_of(server, prefix) as client, asyncio.timeout(60):
        chunks = await create(client, True)
        await anext(chunks)
        reading = asyncio.create_task(read_to_error(chunks))
        await server.graceful_shutdown.wait()
        for task in server.tasks:
            task.cancel()
        # The first is the message of all errors with status 503, whose details have the reason.
        assert await reading in (UNAVAILABLE, SHUTTING_DOWN_ERROR.message)
