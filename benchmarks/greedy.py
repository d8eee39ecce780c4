"""What both servers over llama.cpp are asked alike: greedy answers of a length known before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.client import Reply

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def completion(prompt: str, tokens: int, *, streamed: bool) -> dict[str, Any]:
    """Return a completion's body."""
    return {"prompt": prompt, **_parameters(tokens, streamed=streamed)}


def chat(messages: Sequence[Mapping[str, str]], tokens: int, *, streamed: bool) -> dict[str, Any]:
    """Return a chat's body; its stream tells the usage only if asked, a completion's always."""
    body = {"messages": list(messages), **_parameters(tokens, streamed=streamed)}
    return body | {"stream_options": {"include_usage": True}} if streamed else body


def user(said: str) -> dict[str, str]:
    """Return a user's turn."""
    return {"role": "user", "content": said}


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


def text(reply: Reply, tokens: int, *, streamed: bool) -> str:
    """Return an answer's text, once its length is known to be right."""
    if streamed:
        usages = [chunk["usage"] for chunk in reply.chunks() if chunk.get("usage")]
        _check(usages[-1], tokens)
        return reply.text()
    whole = reply.json()
    _check(whole["usage"], tokens)
    [choice] = whole["choices"]
    said = choice["message"]["content"] if "message" in choice else choice["text"]
    return str(said)


def _check(usage: Mapping[str, int], tokens: int) -> None:
    assert usage["completion_tokens"] == tokens, "the answer has another length"
