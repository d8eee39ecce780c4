"""LangChain's ChatOpenAI, and its OpenAI for text completions, as a program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.telling import LONG_TEXT, WEATHER, Asked, asked, failure, tell


class City(BaseModel):
    """A city and how many live there."""

    name: str
    people: int


def fields(given: Asked, own: dict[str, Any]) -> dict[str, Any]:
    shared = {
        "base_url": given.base_url,
        "api_key": own.pop("key", given.key),
        "model": given.model,
        "max_retries": 0,
    }
    return shared | own


def chat(given: Asked, **own: Any) -> ChatOpenAI:
    return ChatOpenAI(**fields(given, own))


def usage(message: AIMessage) -> list[int]:
    assert message.usage_metadata is not None
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


def joined(found: Iterable[AIMessage]) -> AIMessageChunk:
    whole = AIMessageChunk(content="")
    for chunk in found:
        assert isinstance(chunk, AIMessageChunk)
        whole += chunk
    return whole


async def answers(given: Asked) -> None:
    llm = chat(given)
    whole = llm.invoke("hello")
    tell(
        "whole",
        text=whole.text,
        finish=whole.response_metadata["finish_reason"],
        usage=usage(whole),
    )
    found = [chunk async for chunk in chat(given, stream_usage=True).astream("hello")]
    streamed = joined(found)
    tell(
        "stream",
        text=streamed.text,
        parts=len(found),
        finish=streamed.response_metadata["finish_reason"],
        usage=usage(streamed),
    )


def completion(given: Asked) -> None:
    tell("completion", text="".join(OpenAI(**fields(given, {})).stream("hello")))


def tools(given: Asked) -> None:
    llm = chat(given).bind_tools([WEATHER])
    asking = HumanMessage("What is the weather in Zürich?")
    whole = llm.invoke([asking])
    streamed = joined(llm.stream([asking]))
    called = []
    for message in (whole, streamed):
        (call,) = message.tool_calls
        called.append([call["name"], call["args"]])
    result = ToolMessage("sunny", tool_call_id=whole.tool_calls[0]["id"])
    last = llm.invoke([asking, whole, result])
    tell("tools", called=called, text=last.text)


def structured(given: Asked) -> None:
    found = chat(given).with_structured_output(City, method="json_schema").invoke("a city as JSON")
    assert isinstance(found, City)
    tell("structured", value=found.model_dump())


def refusals(given: Asked) -> None:
    for status, wanted in given.refused.items():
        llm = chat(given, **wanted)
        for stream in (False, True):
            try:
                _ = list(llm.stream("hello")) if stream else llm.invoke("hello")
            except openai.OpenAIError as error:
                tell(status, stream=stream, **failure(error))


def overflow(given: Asked) -> None:
    try:
        chat(given).invoke(LONG_TEXT)
    except openai.OpenAIError as error:
        tell("overflow", **failure(error))


def cut(given: Asked) -> None:
    llm = chat(given)
    text = ""
    try:
        for chunk in llm.stream("die"):
            text += chunk.text
    except openai.OpenAIError as error:
        tell("cut", text=text, **failure(error))
    tell("after", text=llm.invoke("hello").text)


def main() -> None:
    given = asked()
    asyncio.run(answers(given))
    completion(given)
    tools(given)
    structured(given)
    refusals(given)
    overflow(given)
    cut(given)


if __name__ == "__main__":
    main()
