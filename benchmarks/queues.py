"""A queue per request: what most servers put between a runtime's callback and their client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

_TOKEN_TIMEOUT_S = 30.0


class Source(Protocol):
    """A runtime that calls back for every token."""

    def generate(
        self, prompt: Sequence[int], max_tokens: int, put: Callable[[str], object]
    ) -> None:
        """Put the text of each token; returns after the last one."""


def tokens(source: Source, prompt: Sequence[int], max_tokens: int) -> Iterator[str]:
    """Generate on a thread and yield the tokens one by one, as the queue gives them."""
    found: queue.Queue[str | None] = queue.Queue()

    def generate() -> None:
        try:
            source.generate(prompt, max_tokens, found.put)
        finally:
            found.put(None)

    threading.Thread(target=generate, daemon=True).start()
    while (token := found.get(timeout=_TOKEN_TIMEOUT_S)) is not None:
        yield token
