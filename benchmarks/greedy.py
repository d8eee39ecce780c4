"""Requests for both servers over llama.cpp: greedy answers of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.client import Reply

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def completion(prompt: str, tokens: int, *, streamed: bool) -> dict[str, Any]:
    """Return the body of a completion."""
    return {"prompt": prompt, **_parameters(tokens, streamed=streamed)}


def chat(messages: Sequence[Mapping[str, str]], tokens: int, *, streamed: bool) -> dict[str, Any]:
    """Return the body of a chat. Its stream has usage only on request, a completion's always."""
    body = {"messages": list(messages), **_parameters(tokens, streamed=streamed)}
    return body | {"stream_options": {"include_usage": True}} if streamed else body


def user_message(content: str) -> dict[str, str]:
    """Return a user message."""
    return {"role": "user", "content": content}


def _parameters(tokens: int, *, streamed: bool) -> dict[str, Any]:
    return {
        "max_tokens": tokens,
        "stream": streamed,
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "seed": 1,
        "ignore_eos": True,
    }


def answer_text(reply: Reply, tokens: int, *, streamed: bool) -> str:
    """Return the text of an answer after a check of its length."""
    if streamed:
        usages = [chunk["usage"] for chunk in reply.chunks() if chunk.get("usage")]
        _check(usages[-1], tokens)
        return reply.text()
    body = reply.json()
    _check(body["usage"], tokens)
    [choice] = body["choices"]
    content = choice["message"]["content"] if "message" in choice else choice["text"]
    return str(content)


def _check(usage: Mapping[str, int], tokens: int) -> None:
    assert usage["completion_tokens"] == tokens, "the answer has another length"
