"""OpenAI's client for Python as a program, blocking."""

from __future__ import annotations

import json

import openai
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.telling import WEATHER, Asked, asked, failure, tell, turns


class City(BaseModel):
    name: str
    people: int


def answers(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=turns("hello"))
    assert whole.usage is not None
    tell(
        "whole",
        text=whole.choices[0].message.content,
        finish=whole.choices[0].finish_reason,
        usage=[whole.usage.prompt_tokens, whole.usage.completion_tokens],
    )
    *found, last = client.chat.completions.create(
        model=model,
        messages=turns("hello"),
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage is not None
    tell(
        "stream",
        text="".join(chunk.choices[0].delta.content or "" for chunk in found),
        parts=len(found),
        finish=found[-1].choices[0].finish_reason,
        usage=[last.usage.prompt_tokens, last.usage.completion_tokens],
    )


def completion(client: OpenAI, model: str) -> None:
    found = client.completions.create(model=model, prompt="hello", stream=True)
    tell("completion", text="".join(chunk.choices[0].text for chunk in found))


def tools(client: OpenAI, model: str) -> None:
    conversation = turns("What is the weather in Zürich?")
    whole = client.chat.completions.create(
        model=model, messages=conversation, tools=[WEATHER], tool_choice="auto"
    )
    with client.chat.completions.stream(
        model=model, messages=conversation, tools=[WEATHER]
    ) as stream:
        streamed = stream.get_final_completion()
    called = []
    for choice in (whole.choices[0], streamed.choices[0]):
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        called.append([call.function.name, json.loads(call.function.arguments)])
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"
    conversation += [whole.choices[0].message.model_dump(exclude_none=True), result]
    conversation[-1]["tool_call_id"] = conversation[-2]["tool_calls"][0]["id"]
    last = client.chat.completions.create(model=model, messages=conversation, tools=[WEATHER])
    tell("tools", called=called, text=last.choices[0].message.content)


def structured(client: OpenAI, model: str) -> None:
    parsed = client.chat.completions.parse(
        model=model, messages=turns("a city as JSON"), response_format=City
    )
    city = parsed.choices[0].message.parsed
    assert city is not None
    tell("structured", value=city.model_dump())


def refusals(given: Asked) -> None:
    for status, wanted in given.refused.items():
        own = {"base_url": given.base_url, "key": given.key, "model": given.model} | wanted
        with OpenAI(base_url=own.pop("base_url"), api_key=own.pop("key"), max_retries=0) as client:
            for stream in (False, True):
                try:
                    client.chat.completions.create(messages=turns("hello"), stream=stream, **own)
                except openai.OpenAIError as error:
                    tell(status, stream=stream, **failure(error))


def cut(client: OpenAI, model: str) -> None:
    text = ""
    try:
        for chunk in client.chat.completions.create(
            model=model, messages=turns("die"), stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    except openai.OpenAIError as error:
        tell("cut", text=text, **failure(error))
    again = client.chat.completions.create(model=model, messages=turns("hello"))
    tell("after", text=again.choices[0].message.content)


def main() -> None:
    given = asked()
    with OpenAI(base_url=given.base_url, api_key=given.key, max_retries=0) as client:
        answers(client, given.model)
        completion(client, given.model)
        tools(client, given.model)
        structured(client, given.model)
        refusals(given)
        cut(client, given.model)


if __name__ == "__main__":
    main()
