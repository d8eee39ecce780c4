"""The unmodified openai package with any key (R32)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from engine.hooks import RequestEnded
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

T = TypeVar("T")


async def run_with_sync_client(server: Server, steps: Callable[[OpenAI], T]) -> T:
    """Run steps with the blocking client on a separate thread."""

    def run() -> T:
        with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            return steps(client)

    return await asyncio.to_thread(run)


def async_client(server: Server) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1/", api_key="any", max_retries=0)


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    pieces = [{"text": text, "delay_ms": 2} for text in ("Good", " day", " you", " 😀")]
    fault = {"when": "bad", "pieces": ["so far", {"error": "out of memory", "delay_ms": 20}]}
    hang = {"when": "hang", "pieces": ["a", {"hang_s": 3600}]}
    return await serve(script(fault, hang, {"pieces": pieces}), model_name="little")


TEXT = "Good day you 😀"


async def test_completion(server: Server) -> None:
    def steps(client: OpenAI) -> None:
        answer = client.completions.create(model="little", prompt="say it")
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "stop")
        assert answer.usage is not None
        assert answer.usage.total_tokens == 6
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        stream = client.completions.create(model="little", prompt="say it", stream=True)
        chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
        assert chunks[-1].choices[0].finish_reason == "stop"

    await run_with_sync_client(server, steps)


async def test_chat(server: Server) -> None:
    def steps(client: OpenAI) -> None:
        answer = client.chat.completions.create(
            model="little", messages=[{"role": "user", "content": "say it"}]
        )
        assert answer.choices[0].message.content == TEXT
        assert answer.choices[0].message.role == "assistant"
        stream = client.chat.completions.create(
            model="little",
            messages=[{"role": "developer", "content": "say it"}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            stop=["never"],
            max_tokens=100,
        )
        *chunks, last = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
        assert last.usage is not None
        assert last.usage.completion_tokens == 4

    await run_with_sync_client(server, steps)


async def test_chat_stream_helper(server: Server) -> None:
    def steps(client: OpenAI) -> None:
        with client.chat.completions.stream(
            model="little", messages=[{"role": "user", "content": "say it"}]
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert "content.delta" in kinds
        assert final.choices[0].message.content == TEXT
        assert final.choices[0].finish_reason == "stop"

    await run_with_sync_client(server, steps)


async def test_async_client(server: Server) -> None:
    async with async_client(server) as client:
        completion = await client.completions.create(model="little", prompt="x")
        assert completion.choices[0].text == TEXT
        texts = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(
                model="little", prompt="x", stream=True
            )
        ]
        assert "".join(texts) == TEXT
        chat = await client.chat.completions.create(
            model="little", messages=[{"role": "user", "content": "x"}]
        )
        assert chat.choices[0].message.content == TEXT
        deltas = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(
                model="little", messages=[{"role": "user", "content": "x"}], stream=True
            )
        ]
        assert "".join(deltas) == TEXT


async def test_models(server: Server) -> None:
    async with async_client(server) as client:
        assert [model.id async for model in client.models.list()] == ["little"]


async def test_errors_are_the_clients_own_classes(server: Server) -> None:
    async with async_client(server) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="little", prompt="x", temperature=3)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError, match="little"):
            await client.completions.create(model="gpt-4", prompt="x")
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await client.completions.create(model="little", prompt="bad")


async def test_error_in_mid_stream_is_raised_by_the_client(server: Server) -> None:  # R30
    async with async_client(server) as client:
        stream = await client.completions.create(model="little", prompt="bad", stream=True)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].text)  # noqa: PERF401 - what came before it raised

        with pytest.raises(openai.APIError, match="out of memory"):
            await read()
        assert texts == ["so far"]


async def test_closing_a_stream_stops_the_generation(server: Server) -> None:  # R31
    async with async_client(server) as client:
        stream = await client.completions.create(model="little", prompt="hang", stream=True)
        await anext(stream)
        await stream.close()
        (ended,) = await server.events.wait(RequestEnded)
        assert ended.aborted
    await server.wait_until_idle()


async def test_timeout_of_the_client_stops_the_generation(server: Server) -> None:  # R31
    async with async_client(server) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.completions.create(model="little", prompt="hang", timeout=1)
        (ended,) = await server.events.wait(RequestEnded)
        assert ended.aborted
    await server.wait_until_idle()
