"""An SDK worker as those that pass on what another server streams: text, cut wherever it was read.

It answers OpenAI calls with their own words, one object or cut into pieces of seven characters, and
what it calls an error is an object, which the SDK writes as Python does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import runpod

PIECE = 7


def said(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    shared = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "other"}
    return {**shared, "choices": [choice]}


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    asked = job["input"]["openai_input"]
    if job["input"]["openai_route"] != "/v1/completions":
        yield {"error": {"message": "no such route", "type": "NotFoundError", "code": 404}}
    elif not asked.get("stream"):
        yield said(asked["prompt"])
    else:
        events = [f"data: {json.dumps(said(word), indent=1)}" for word in asked["prompt"].split()]
        text = "".join([event.replace("\n", "\r\ndata: ") + "\r\n\r\n" for event in events])
        text += "data: [DONE]\r\n\r\n"
        for at in range(0, len(text), PIECE):
            yield text[at : at + PIECE]


if __name__ == "__main__":
    runpod.serverless.start({"handler": handler})
