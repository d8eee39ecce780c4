"""Work on text that would hold up the event loop, done beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# From here on looking at a text takes long enough for the event loop to notice.
_LONG_CHARS = 10_000


async def in_thread(chars: int | None, look: Callable[[], T]) -> T:
    """Look at text of that many characters, in a thread if they are many or it may take long."""
    if chars is not None and chars < _LONG_CHARS:
        return look()
    return await asyncio.to_thread(look)
