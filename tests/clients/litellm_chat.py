"""LiteLLM as a program."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

import openai

from tests.clients.telling import CITY, LONG_TEXT, WEATHER, Asked, asked, failure, tell, turns

# It says that it is typed, and looking through it would take longer than through all else.
litellm: Any = importlib.import_module("litellm")


def arguments(given: Asked, provider: str = "openai", **own: Any) -> dict[str, Any]:
    fields = {"base_url": given.base_url, "key": given.key, "model": given.model} | own
    return {
        "api_base": fields.pop("base_url"),
        "api_key": fields.pop("key"),
        "max_retries": 0,
        **fields,
        "model": f"{provider}/{fields['model']}",
    }


def usage(answer: Any) -> list[int]:
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens]


async def answers(given: Asked) -> None:
    whole = litellm.completion(messages=turns("hello"), **arguments(given))
    tell(
        "whole",
        text=whole.choices[0].message.content,
        finish=whole.choices[0].finish_reason,
        usage=usage(whole),
    )
    found = [
        chunk
        async for chunk in await litellm.acompletion(
            messages=turns("hello"),
            stream=True,
            stream_options={"include_usage": True},
            **arguments(given),
        )
    ]
    streamed = litellm.stream_chunk_builder(found, messages=turns("hello"))
    tell(
        "stream",
        text=streamed.choices[0].message.content,
        parts=len(found),
        finish=streamed.choices[0].finish_reason,
        usage=usage(streamed),
    )


def completion(given: Asked) -> None:
    found = litellm.text_completion(
        prompt="hello", stream=True, **arguments(given, "text-completion-openai")
    )
    tell("completion", text="".join(chunk.choices[0].text or "" for chunk in found))


def tools(given: Asked) -> None:
    conversation = turns("What is the weather in Zürich?")
    whole = litellm.completion(messages=conversation, tools=[WEATHER], **arguments(given))
    found = list(
        litellm.completion(messages=conversation, tools=[WEATHER], stream=True, **arguments(given))
    )
    streamed = litellm.stream_chunk_builder(found, messages=conversation)
    called = []
    for answer in (whole, streamed):
        (call,) = answer.choices[0].message.tool_calls
        called.append([call.function.name, json.loads(call.function.arguments)])
    message = whole.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    last = litellm.completion(
        messages=[*conversation, message, result], tools=[WEATHER], **arguments(given)
    )
    tell("tools", called=called, text=last.choices[0].message.content)


def structured(given: Asked) -> None:
    answer = litellm.completion(
        messages=turns("a city as JSON"),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": CITY, "strict": True},
        },
        **arguments(given),
    )
    tell("structured", value=json.loads(answer.choices[0].message.content))


def refusals(given: Asked) -> None:
    for status, wanted in given.refused.items():
        own = arguments(given, **wanted)
        for stream in (False, True):
            try:
                answer = litellm.completion(messages=turns("hello"), stream=stream, **own)
                _ = list(answer) if stream else None
            except openai.OpenAIError as error:
                tell(status, stream=stream, **failure(error))


def overflow(given: Asked) -> None:
    try:
        litellm.completion(messages=turns(LONG_TEXT), **arguments(given))
    except openai.OpenAIError as error:
        tell("overflow", **failure(error))


def cut(given: Asked) -> None:
    text = ""
    try:
        for chunk in litellm.completion(messages=turns("die"), stream=True, **arguments(given)):
            text += chunk.choices[0].delta.content or ""
    except openai.OpenAIError as error:
        tell("cut", text=text, **failure(error))
    again = litellm.completion(messages=turns("hello"), **arguments(given))
    tell("after", text=again.choices[0].message.content)


def main() -> None:
    given = asked()
    # What it prints of errors beside raising them.
    litellm.suppress_debug_info = True
    asyncio.run(answers(given))
    completion(given)
    tools(given)
    structured(given)
    refusals(given)
    overflow(given)
    cut(given)


if __name__ == "__main__":
    main()
