"""Anthropic's client for Python: `anthropic_python.py messages|tools`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from anthropic import Anthropic

TOOL: Any = {
    "name": "report",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    },
}
FIELDS: dict[str, Any] = {
    "model": os.environ["TORTURE_MODEL"],
    "max_tokens": 1024,
    "messages": [{"role": "user", "content": "hi"}],
}


def messages(client: Anthropic) -> Iterator[str]:
    with client.messages.stream(**FIELDS) as stream:
        yield from stream.text_stream
        stream.get_final_message()


def tools(client: Anthropic) -> Iterator[str]:
    with client.messages.stream(tools=[TOOL], **FIELDS) as stream:
        for event in stream:
            if event.type == "input_json":
                yield event.partial_json
        stream.get_final_message()


if __name__ == "__main__":
    calls = {"messages": messages, "tools": tools}
    for text in calls[sys.argv[1]](Anthropic(max_retries=0)):
        print(text, end="", flush=True)
