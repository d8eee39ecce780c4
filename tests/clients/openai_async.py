"""OpenAI's client for Python as a program, with asyncio."""

from __future__ import annotations

import asyncio
import json

import openai
from openai import AsyncOpenAI

from tests.clients.telling import CITY, WEATHER, Asked, asked, failure, tell, turns


async def answers(client: AsyncOpenAI, model: str) -> None:
    whole = await client.chat.completions.create(model=model, messages=turns("hello"))
    assert whole.usage is not None
    tell(
        "whole",
        text=whole.choices[0].message.content,
        finish=whole.choices[0].finish_reason,
        usage=[whole.usage.prompt_tokens, whole.usage.completion_tokens],
    )
    *found, last = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=model,
            messages=turns("hello"),
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    assert last.usage is not None
    tell(
        "stream",
        text="".join(chunk.choices[0].delta.content or "" for chunk in found),
        parts=len(found),
        finish=found[-1].choices[0].finish_reason,
        usage=[last.usage.prompt_tokens, last.usage.completion_tokens],
    )


async def completion(client: AsyncOpenAI, model: str) -> None:
    found = await client.completions.create(model=model, prompt="hello", stream=True)
    tell("completion", text="".join([chunk.choices[0].text async for chunk in found]))


async def tools(client: AsyncOpenAI, model: str) -> None:
    conversation = turns("What is the weather in Zürich?")
    called = []
    for choice in ("auto", "required"):
        async with client.chat.completions.stream(
            model=model, messages=conversation, tools=[WEATHER], tool_choice=choice
        ) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        (call,) = message.tool_calls or []
        called.append([call.function.name, json.loads(call.function.arguments)])
    conversation += [
        {"role": "assistant", "tool_calls": [call.model_dump(exclude={"parsed_arguments"})]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    last = await client.chat.completions.create(model=model, messages=conversation)
    tell("tools", called=called, text=last.choices[0].message.content)


async def structured(client: AsyncOpenAI, model: str) -> None:
    answer = await client.chat.completions.create(
        model=model,
        messages=turns("a city as JSON"),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": CITY, "strict": True},
        },
    )
    tell("structured", value=json.loads(answer.choices[0].message.content or ""))


async def refusals(given: Asked) -> None:
    for status, wanted in given.refused.items():
        own = {"base_url": given.base_url, "key": given.key, "model": given.model} | wanted
        async with AsyncOpenAI(
            base_url=own.pop("base_url"), api_key=own.pop("key"), max_retries=0
        ) as client:
            for stream in (False, True):
                try:
                    await client.chat.completions.create(
                        messages=turns("hello"), stream=stream, **own
                    )
                except openai.OpenAIError as error:
                    tell(status, stream=stream, **failure(error))


async def cut(client: AsyncOpenAI, model: str) -> None:
    text = ""
    try:
        async for chunk in await client.chat.completions.create(
            model=model, messages=turns("die"), stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    except openai.OpenAIError as error:
        tell("cut", text=text, **failure(error))
    again = await client.chat.completions.create(model=model, messages=turns("hello"))
    tell("after", text=again.choices[0].message.content)


async def main() -> None:
    given = asked()
    async with AsyncOpenAI(base_url=given.base_url, api_key=given.key, max_retries=0) as client:
        await answers(client, given.model)
        await completion(client, given.model)
        await tools(client, given.model)
        await structured(client, given.model)
        await refusals(given)
        await cut(client, given.model)


if __name__ == "__main__":
    asyncio.run(main())
