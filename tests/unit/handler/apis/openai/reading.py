"""Read OpenAI responses, streamed or not, into one form, validated with OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai._streaming import SSEDecoder
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from common.json_object import JsonObject


@dataclass(slots=True)
class Choice:
    """One choice, its parts joined."""

    text: str = ""
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class ReadResponse:
    """A complete response; `sent` are its chunks, empty if it was not streamed."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    warnings: list[str] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)


def read_response(body: JsonObject) -> ReadResponse:
    """Read a body, and check that its choices are finished and in the order of their indexes."""
    if body["object"] == "chat.completion":
        ChatCompletion.model_validate(body, strict=True)
    else:
        Completion.model_validate(
            {**body, "choices": _without_openai_nulls(body["choices"])}, strict=True
        )
    response = ReadResponse(usage=body["usage"], warnings=body.get("warnings", []))
    for index, choice in enumerate(body["choices"]):
        assert choice["index"] == index
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        response.choices[index] = Choice(
            text, choice["logprobs"], choice["finish_reason"], choice.get("stop_reason")
        )
    return response


def read_stream(blocks: Iterable[bytes]) -> ReadResponse:
    """Join the blocks of a stream that ended well; R19-R22 hold for every chunk of it."""
    chunks = read_chunks(blocks)
    response = ReadResponse(sent=chunks)
    first = chunks[0]
    for chunk in chunks:
        check_chunk(chunk)
        for key in ("id", "object", "created", "model"):
            assert chunk[key] == first[key]
        response.warnings += chunk.get("warnings", [])
        if chunk.get("usage") is not None:
            assert response.usage is None
            assert chunk is chunks[-1]
            response.usage = chunk["usage"]
        if chunk["choices"]:
            _join(response, chunk)
        else:
            assert chunk is chunks[-1]
    assert all(choice.finish_reason for choice in response.choices.values())
    return response


def _join(response: ReadResponse, chunk: dict[str, Any]) -> None:
    (part,) = chunk["choices"]
    index = part["index"]
    if chunk["object"] == "chat.completion.chunk" and index not in response.choices:
        assert part["delta"] == {"role": "assistant", "content": ""}
    choice = response.choices.setdefault(index, Choice())
    assert choice.finish_reason is None
    text = text_of(part)
    choice.text += text
    choice.logprobs = join_logprobs(choice.logprobs, part["logprobs"])
    choice.finish_reason = part["finish_reason"]
    choice.stop_reason = part.get("stop_reason")
    if choice.finish_reason is not None:
        assert text == ""
        assert part["logprobs"] is None


def join_logprobs(
    one: dict[str, Any] | None, other: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Join logprobs key by key."""
    if one is None or other is None:
        return one or other
    assert one.keys() == other.keys()
    return {key: one[key] if one[key] is None else [*one[key], *other[key]] for key in one}


def read_chunks(blocks: Iterable[bytes]) -> list[dict[str, Any]]:
    """Decode each block by itself, as the client's own decoder reads it (R29)."""
    result: list[str] = []
    for block in blocks:
        assert block.endswith(b"\n\n")
        events = [event.data for event in SSEDecoder().iter_bytes(iter([block]))]
        assert len(events) == block.count(b"\n\n")
        result += events
    assert result.index("[DONE]") == len(result) - 1
    return [json.loads(data) for data in result[:-1]]


def text_of(choice: dict[str, Any]) -> str:
    """Return the text in a part of a choice."""
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


def check_chunk(chunk: dict[str, Any]) -> None:
    """Validate a chunk by the model that the client has of it."""
    if chunk["object"] == "chat.completion.chunk":
        ChatCompletionChunk.model_validate(chunk, strict=True)
    else:
        Completion.model_validate(
            {**chunk, "choices": _without_openai_nulls(chunk["choices"])}, strict=True
        )


def _without_openai_nulls(choices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put something in the place of OpenAI's own nulls, which its model lacks.

    They are the finish reason of a chunk that is not the last, and the log-probability of a token
    that nothing comes before.
    """
    known = []
    for choice in choices:
        logprobs = choice["logprobs"]
        if logprobs is not None:
            logprobs = {
                **logprobs,
                "token_logprobs": [value or 0.0 for value in logprobs["token_logprobs"]],
                "top_logprobs": [value or {} for value in logprobs["top_logprobs"]],
            }
        reason = choice["finish_reason"] or "stop"
        known.append({**choice, "finish_reason": reason, "logprobs": logprobs})
    return known
