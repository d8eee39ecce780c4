"""An SDK worker that passes on another server's stream as text, cut at arbitrary positions.

It answers OpenAI calls with their prompt, as one object or in pieces of seven characters. Its error
is an object, which the SDK writes with `repr`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import runpod

PIECE = 7


def completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    shared = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "other"}
    return {**shared, "choices": [choice]}


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    body = job["input"]["openai_input"]
    if job["input"]["openai_route"] != "/v1/completions":
        yield {"error": {"message": "no such route", "type": "NotFoundError", "code": 404}}
    elif not body.get("stream"):
        yield completion(body["prompt"])
    else:
        events = [
            f"data: {json.dumps(completion(word), indent=1)}" for word in body["prompt"].split()
        ]
        text = "".join([event.replace("\n", "\r\ndata: ") + "\r\n\r\n" for event in events])
        text += "data: [DONE]\r\n\r\n"
        for at in range(0, len(text), PIECE):
            yield text[at : at + PIECE]


if __name__ == "__main__":
    runpod.serverless.start({"handler": handler})
