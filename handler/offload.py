"""Work on a request that would hold up the event loop, done beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

from handler.json_size import exceeds, has_more_members

T = TypeVar("T")

# From here on looking at a text takes long enough for the event loop to notice.
_LONG_CHARS = 10_000
# Values that are read and checked on the event loop, at some 3 µs each.
_MAX_MEMBERS = 2_000
# Schemas and lists of terms are compiled, which takes longer for each character.
_MAX_COMPILED_CHARS = 200
_COMPILED = ("validation", "response_format", "tools")


async def run_in_thread(chars: int | None, look: Callable[[], T]) -> T:
    """Look at text of that many characters, in a thread if they are many or it may take long."""
    if chars is not None and chars < _LONG_CHARS:
        return look()
    return await asyncio.to_thread(look)


async def check_body(body: Any, check: Callable[[], T]) -> T:
    """Return what `check` makes of a request's body, checked in a thread if the body is large.

    There is one such thread: several would take the interpreter's lock from the event loop one
    after another. Raises what `check` raises.
    """
    if not is_expensive_to_check(body):
        return check()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_validator(), copy_context().run, check)


def is_expensive_to_check(body: Any) -> bool:
    """Return whether checking a body could hold up the event loop for more than some 5 ms."""
    if has_more_members(body, _MAX_MEMBERS):
        return True
    return isinstance(body, Mapping) and any(
        name in body and exceeds(body[name], _MAX_COMPILED_CHARS) for name in _COMPILED
    )


@cache
def _validator() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="validate")
