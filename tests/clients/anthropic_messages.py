"""Anthropic's client for Python as a program."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic

from tests.clients.telling import LONG_TEXT, WEATHER, Asked, asked, failure, tell, turns

TOOL: dict[str, Any] = {
    "name": WEATHER["function"]["name"],
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}
TIMEOUT_S = 60
SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}


def describe(message: Any) -> dict[str, Any]:
    """Return what a program reads from a message."""
    usage = message.usage
    return {
        "model": message.model,
        "content": [block.model_dump(mode="json", exclude={"id"}) for block in message.content],
        "stop": [message.stop_reason, message.stop_sequence],
        "usage": [usage.input_tokens, usage.output_tokens],
    }


def report_both(client: Anthropic, scenario: str, **fields: Any) -> Any:
    """Report a message, whole and streamed; return the whole one."""
    whole = client.messages.create(**fields)
    tell(scenario, streamed=False, **describe(whole))
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        tell(scenario, streamed=True, kinds=kinds, **describe(stream.get_final_message()))
    return whole


def report_tools(client: Anthropic, common: dict[str, Any]) -> None:
    conversation = turns("What is the weather in Zürich?")
    tools = {"tools": [SEARCH, TOOL], "tool_choice": {"type": "auto"}}
    called = report_both(client, "tools", messages=conversation, **tools, **common)
    call = called.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    conversation += [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    report_both(client, "result", messages=conversation, **tools, **common)


def report_errors(given: Asked) -> None:
    for status, fields in given.refused.items():
        own = {"base_url": given.base_url, "key": given.key, "model": given.model} | fields
        client = Anthropic(base_url=own.pop("base_url"), api_key=own.pop("key"), max_retries=0)
        text = LONG_TEXT if own.pop("is_long", False) else "hello"
        for stream in (False, True):
            try:
                client.messages.create(max_tokens=9, messages=turns(text), stream=stream, **own)
            except anthropic.APIStatusError as error:
                tell(status, stream=stream, body=error.body, **failure(error))


def report_broken_stream(client: Anthropic, common: dict[str, Any]) -> None:
    text = ""
    try:
        with client.messages.stream(messages=turns("die"), **common) as stream:
            for piece in stream.text_stream:
                text += piece
    except anthropic.APIStatusError as error:
        tell("broken", text=text, body=error.body, **failure(error))


def main() -> None:
    given = asked()
    # With its own timeout, the client refuses so many tokens unless the answer is streamed.
    client = Anthropic(base_url=given.base_url, api_key=given.key, max_retries=0, timeout=TIMEOUT_S)
    common = {"model": given.model, "max_tokens": 32_000}
    report_both(client, "text", messages=turns("hello"), system="Be kind.", **common)
    report_tools(client, common)
    report_both(
        client,
        "thinking",
        messages=turns("think"),
        thinking={"type": "enabled", "budget_tokens": 1024},
        **common,
    )
    report_both(client, "stop", messages=turns("hello"), stop_sequences=["rich"], **common)
    counted = client.messages.count_tokens(model=given.model, messages=turns("hello"))
    tell("count", tokens=counted.input_tokens)
    tell("models", ids=[model.id for model in client.models.list()])
    beta = client.beta.messages.create(messages=turns("hello"), betas=["any-2025-01-01"], **common)
    tell("beta", **describe(beta))
    report_errors(given)
    report_broken_stream(client, common)


if __name__ == "__main__":
    main()
