"""A queue per request, as most servers have it between the runtime's callback and the client."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

_TOKEN_TIMEOUT_S = 30.0


class Source(Protocol):
    """A runtime that calls back for every token."""

    def generate(
        self, prompt: Sequence[int], max_tokens: int, put: Callable[[str], object]
    ) -> None:
        """Put the text of each token; return after the last one."""


def tokens(source: Source, prompt: Sequence[int], max_tokens: int) -> Iterator[str]:
    """Generate on a thread and yield the tokens one by one from the queue."""
    token_queue: queue.Queue[str | None] = queue.Queue()

    def generate() -> None:
        try:
            source.generate(prompt, max_tokens, token_queue.put)
        finally:
            token_queue.put(None)

    threading.Thread(target=generate, daemon=True).start()
    while (token := token_queue.get(timeout=_TOKEN_TIMEOUT_S)) is not None:
        yield token


def completion_events(source: Source, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the server-sent events of a streamed completion, one for each token."""
    request_id, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
    for text in tokens(source, body["prompt"], body["max_tokens"]):
        chunk = {
            "id": request_id,
            "object": "text_completion",
            "created": created,
            "model": body["model"],
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}],
        }
        yield f"data: {json.dumps(chunk)}\n\n"
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    yield f"data: {json.dumps({'id': request_id, 'choices': [last]})}\n\n"
    yield "data: [DONE]\n\n"
