"""Long texts that take a careless reader quadratic time, as inputs and as answers of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx2

from tests.security.loop_stalls import watched_loop
from tests.security.type_cases import FULL_BODIES, TypeCase

SIZE = 1_000_000
# Three times the longest stall of these texts on a quiet machine.
STALL_LIMIT_S = 0.35
_JSON = {"content-type": "application/json"}
# One repeated piece each: openings without an end, runs that a search goes back over, characters
# that a library takes one by one.
PIECES = (
    *("[", "{", '{"a":', '["', "(", "<", "<think>", "</think>", "<tool_call>", "[TOOL_CALLS]"),
    *("```", "```json\n", "call:f{a:", '<|tool_call>call:f{a:<|"|>', "[f(a=", "<function=f>"),
    *(" ", "\n", "\t ", ", ", "\\", '"', "'", "\\u", "=", "a", "a ", "a@", "1", "1-", "0x", "+4"),
    *("é", "\u0301", "\u200d", "\u2028", "😀", "ﷺ", ".", "-", "*", "_", "#", "|", "&amp;", "%2F"),
    *(
        "http://",
        "a.",
        "www.",
        "\x1b[",
        "\0",
        "(a|b)",
        "[^x]",
        "a{9}",
        "\\p{L}",
        "$ref",
        "~1",
        "//",
    ),
    *('{"name": "f", "arguments": {"a": ', '{"name": "f", "arguments": {}}', "<|channel|>"),
    *("data:image/png;base64,", "\r\n\r\n", "-----", "Hello world. ", "the the ", "ababab", "日本"),
)
# After these beginnings a reader is within something that has no end.
BEGINNINGS = (
    *("", '{"name": "f", "arguments": {"a": 1,', '<tool_call>{"name": "f", "arguments": {"a": "'),
    *("<|tool_call>call:f{a:", "<tool_call><function=f><parameter=a>", "[f(a=", "<think>"),
    *('[TOOL_CALLS]f[ARGS]{"a":1,', "```json\n"),
)


def worst_text(piece: str, size: int = SIZE, beginning: str = "") -> str:
    """Return a text of about so many characters."""
    return beginning + piece * (size // len(piece))


def text_cases() -> Iterator[TypeCase]:
    """Yield cases for each text member of the bodies of all APIs, with the pieces in turn.

    Some members may have at most 10,000 characters.
    """
    number = 0
    for route, body in FULL_BODIES:
        for keys in _text_paths(body, ()):
            for size in (SIZE, SIZE, 9_990):
                yield TypeCase(route, body, keys, worst_text(PIECES[number % len(PIECES)], size))
                number += 1


def _text_paths(value: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str):
        yield keys
    elif isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            yield from _text_paths(member, (*keys, key))


_FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}
_TURN = [{"role": "user", "content": "QUESTION"}]
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_CHAT: dict[str, Any] = {"messages": _TURN, "tools": _TOOLS}
_RESPONSE: dict[str, Any] = {"input": "QUESTION", "tools": [{"type": "function", **_FUNCTION}]}
_MESSAGE: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 2_000_000,
    "messages": _TURN,
    "tools": [{"name": "f", "input_schema": _FUNCTION["parameters"]}],
}
_CHECKS = {"json_schema": {"type": "object"}, "language": "en", "repair_json": True}
# Calls whose answers are taken apart, encoded or checked, each in its own way.
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", _CHAT),
    ("/v1/chat/completions", {**_CHAT, "stream": True}),
    ("/v1/chat/completions", {"messages": _TURN, "enable_validation": True, "validation": _CHECKS}),
    ("/v1/responses", _RESPONSE),
    ("/v1/responses", {**_RESPONSE, "stream": True}),
    ("/v1/messages", _MESSAGE),
    ("/v1/messages", {**_MESSAGE, "stream": True}),
    ("/api/chat", {"model": "scripted", **_CHAT}),
    ("/api/chat", {"model": "scripted", **_CHAT, "stream": False}),
    ("/runsync", {"input": {"messages": _TURN, "stream": True}}),
    ("/runsync", {"input": {"openai_route": "/v1/chat/completions", "openai_input": _CHAT}}),
)


def answer_cases(size: int) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield the route and the body of a call, and the answer that a script has for it."""
    number = 0
    for beginning in BEGINNINGS:
        for piece in PIECES:
            text, question = worst_text(piece, size, beginning), f"Q{number}Q"
            middle = len(text) // 2
            route, body = _CALLS[number % len(_CALLS)]
            content = json.dumps(body).replace("QUESTION", question).encode()
            yield route, content, {"when": question, "pieces": [text[:middle], text[middle:]]}
            number += 1


async def find_stalls(
    client: httpx2.AsyncClient, calls: Iterable[tuple[str, bytes]], limit_s: float
) -> list[str]:
    """Send calls one after the other; return a line for each that held up the event loop."""
    stalls: list[str] = []
    async with watched_loop() as watched:
        for number, (route, content) in enumerate(calls):
            watched.reset()
            response = await client.post(route, content=content, headers=_JSON)
            assert response.status_code < 500, (number, route, response.text[:500])
            if (longest_s := watched.reset()) > limit_s:
                stalls.append(f"call {number}, {route}: {longest_s:.3f} s")
    return stalls
