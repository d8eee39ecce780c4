"""Run work that would block the event loop in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

from common.json_size import exceeds, has_more_members
from handler.input.constraints import CONSTRAINT_KEYS

T = TypeVar("T")

# Validating a longer text would block the event loop noticeably.
_MAX_INLINE_CHARS = 10_000
# Values that are checked on the event loop, at about 3 µs each.
_MAX_INLINE_MEMBERS = 2_000
# Characters of a body that are. Images are decoded, and other texts searched.
_MAX_INLINE_BODY_CHARS = 20_000
# Schemas and lists of terms are compiled, which takes longer per character.
_MAX_INLINE_COMPILED_CHARS = 200
_COMPILED_FIELDS = (
    *("validation", "tools", "format", "text", "sampling_params", "openai_input"),
    *sorted(CONSTRAINT_KEYS),
)


async def run_in_thread(chars: int | None, work: Callable[[], T]) -> T:
    """Return the result of `work` on a text of `chars` characters; a long text runs in a thread.

    None as `chars` states that the work may take long for any text.
    """
    if chars is not None and chars < _MAX_INLINE_CHARS:
        return work()
    return await asyncio.to_thread(work)


async def check_body(body: Any, check: Callable[[], T]) -> T:
    """Return the result of `check`, which validates `body`; a large body is checked in a thread.

    There is only one such thread: several would compete with the event loop for the interpreter's
    lock. Raises what `check` raises.
    """
    return await run_check(check) if is_expensive_to_check(body) else check()


async def run_check(check: Callable[[], T]) -> T:
    """Return the result of a check that may take long, from the thread for such checks."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_validation_thread(), copy_context().run, check)


def is_expensive_to_check(body: Any) -> bool:
    """Return whether checking a body could block the event loop for more than about 5 ms."""
    if has_more_members(body, _MAX_INLINE_MEMBERS) or exceeds(body, _MAX_INLINE_BODY_CHARS):
        return True
    return isinstance(body, Mapping) and any(
        name in body and exceeds(body[name], _MAX_INLINE_COMPILED_CHARS)
        for name in _COMPILED_FIELDS
    )


@cache
def _validation_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="validate")
