"""Find the parts of a chunk that faults change, whatever API it is of.

A chunk is one of the OpenAI API, an event of the Responses or the Messages API, a line of Ollama's
API, or a partial output of a job.
"""

from __future__ import annotations

from typing import Any

import orjson

from handler.apis.core.wire_format import escape_line_separators

# The events that say why a response or a message has ended.
_LAST_EVENTS = ("response.completed", "response.incomplete", "message_delta")


def parse_json(data: bytes | None) -> Any:
    """Return the value of JSON; None if the data is not JSON."""
    try:
        return orjson.loads(data or b"")
    except orjson.JSONDecodeError:
        return None


def dump_json(value: Any) -> bytes:
    """Return JSON as the server writes it, with line separators escaped."""
    return escape_line_separators(orjson.dumps(value))


def find_text(chunk: Any) -> tuple[dict[str, Any], str] | None:
    """Return the object and the key of the first text of a chunk that is not empty."""
    if not isinstance(chunk, dict):
        return None
    for holder, key in _list_text_places(chunk):
        if isinstance(holder, dict) and isinstance(holder.get(key), str) and holder[key]:
            return holder, key
    return None


def _list_text_places(chunk: dict[str, Any]) -> list[tuple[Any, str]]:
    """Return all places where a chunk may have its text, as an object and a key."""
    places: list[tuple[Any, str]] = [
        (chunk, "delta"),
        (chunk, "response"),
        (chunk.get("message"), "content"),
    ]
    output = chunk.get("output")
    choices = chunk.get("choices")
    if choices is None and isinstance(output, dict):
        choices = output.get("choices")
    for candidate in choices if isinstance(choices, list) else [chunk, output]:
        if not isinstance(candidate, dict):
            continue
        delta = candidate.get("delta")
        if isinstance(delta, dict):
            places += [(delta, "content"), (delta, "text")]
        else:
            places.append((candidate, "text"))
    return places


def has_finish_reason(chunk: Any) -> bool:
    """Return whether a chunk says why the answer has ended."""
    if not isinstance(chunk, dict):
        return False
    if chunk.get("type") in _LAST_EVENTS or chunk.get("done") is True:
        return True
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )


def add_text(finish: Any, text: str) -> bool:
    """Write a text into the chunk that says why the answer has ended; False if it has no place."""
    if not isinstance(finish, dict):
        return False
    if isinstance(finish.get("message"), dict):
        finish["message"]["content"] = text
    elif isinstance(finish.get("response"), str):
        finish["response"] = text
    elif isinstance(choices := finish.get("choices"), list) and choices:
        choice = choices[0]
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["content"] = text
        else:
            choice["text"] = text
    else:
        return False
    return True
