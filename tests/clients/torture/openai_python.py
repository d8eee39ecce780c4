"""OpenAI's client for Python: `openai_python.py chat|tools|completions|responses|final-response`.

`final-response` uses the client's helper for streams of a response, which checks their end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from openai import OpenAI

MODEL = os.environ["TORTURE_MODEL"]
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "report",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}


def chat(client: OpenAI) -> Iterator[str | None]:
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    for chunk in stream:
        if chunk.choices:
            yield chunk.choices[0].delta.content


def tools(client: OpenAI) -> Iterator[str | None]:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[TOOL], stream=True
    )
    for chunk in stream:
        if chunk.choices:
            for call in chunk.choices[0].delta.tool_calls or []:
                if call.function:
                    yield call.function.arguments


def completions(client: OpenAI) -> Iterator[str | None]:
    for chunk in client.completions.create(model=MODEL, prompt="hi", stream=True):
        if chunk.choices:
            yield chunk.choices[0].text


def responses(client: OpenAI) -> Iterator[str | None]:
    for event in client.responses.create(model=MODEL, input="hi", stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta


def final_response(client: OpenAI) -> Iterator[str | None]:
    with client.responses.stream(model=MODEL, input="hi") as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta
        stream.get_final_response()


CALLS = {
    "chat": chat,
    "tools": tools,
    "completions": completions,
    "responses": responses,
    "final-response": final_response,
}

if __name__ == "__main__":
    for text in CALLS[sys.argv[1]](OpenAI(max_retries=0)):
        print(text or "", end="", flush=True)
