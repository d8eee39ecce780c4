"""Anthropic's and Ollama's clients for Python as a program that reports how answers fail."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

import ollama
from anthropic import AnthropicError, AsyncAnthropic, AsyncStream

from tests.clients.telling import failure, tell, turns

PROMPT = "hello"
TIMEOUT_S = 60
QUEUE = "/v2/default/openai"

Texts = AsyncIterator[str]


async def read_message(url: str, model: str, *, streams: bool) -> Texts:
    async with AsyncAnthropic(
        base_url=url, api_key="any", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        answer = await client.messages.create(
            model=model, max_tokens=99, messages=turns(PROMPT), stream=streams
        )
        if not isinstance(answer, AsyncStream):
            yield answer.model_dump_json()
            return
        async for event in answer:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text


async def read_chat(url: str, model: str, *, streams: bool) -> Texts:
    client = ollama.AsyncClient(url, timeout=TIMEOUT_S)
    if not streams:
        yield (await client.chat(model, turns(PROMPT))).model_dump_json()
        return
    async for line in await client.chat(model, turns(PROMPT), stream=True):
        yield line.message.content or ""


async def read_generated(url: str, model: str, *, streams: bool) -> Texts:
    client = ollama.AsyncClient(url, timeout=TIMEOUT_S)
    if not streams:
        yield (await client.generate(model, PROMPT)).model_dump_json()
        return
    async for line in await client.generate(model, PROMPT, stream=True):
        yield line.response or ""


def list_calls(url: str, model: str) -> dict[str, Callable[..., Texts]]:
    """Return the calls to a server by name."""
    return {
        "messages": partial(read_message, url, model),
        "messages in the queue": partial(read_message, url + QUEUE, model),
        "chat": partial(read_chat, url, model),
        "generate": partial(read_generated, url, model),
    }


async def report(
    scenario: str, call: str, texts: Texts, first_texts: asyncio.Barrier | None = None
) -> None:
    """Report the text of an answer and what the client raised; wait for others at the first text.

    The class of another exception is not the client's own, so that it ends the program.
    """
    text, raised = "", {}
    try:
        async for piece in texts:
            text += piece
            if piece and first_texts is not None:
                await first_texts.wait()
                first_texts = None
    except (AnthropicError, ollama.ResponseError) as error:
        raised = failure(error)
    tell(scenario, call=call, text=text, **raised)


async def report_failures(url: str, model: str) -> None:
    for call, read in list_calls(url, model).items():
        await report("failed, whole", call, read(streams=False))
        await report("failed, streamed", call, read(streams=True))


async def report_end_of_the_server(url: str, model: str, last_prompt: str) -> None:
    """Report how the answers of a server end; it is ended once it has answered `last_prompt`."""
    calls = list_calls(url, model)
    first_texts = asyncio.Barrier(len(calls) + 1)
    async with asyncio.TaskGroup() as group:
        for call, read in calls.items():
            group.create_task(report("ended, whole", call, read(streams=False)))
            streamed = report("ended, streamed", call, read(streams=True), first_texts)
            group.create_task(streamed)
        await first_texts.wait()
        await ollama.AsyncClient(url, timeout=TIMEOUT_S).generate(model, last_prompt)


async def main() -> None:
    given = json.loads(sys.argv[1])
    await report_failures(given["failing_url"], given["model"])
    await report_end_of_the_server(given["ending_url"], given["model"], given["last_prompt"])


if __name__ == "__main__":
    asyncio.run(main())
