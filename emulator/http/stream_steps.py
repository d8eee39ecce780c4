"""Read the stream of a job in steps, so that a long one does not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from jobs import Chunk

# Parsed and encoded again in a few milliseconds.
STEP_BYTES = 64_000


async def split_chunks(
    chunks: Sequence[Chunk], step_bytes: int = STEP_BYTES
) -> AsyncIterator[list[Chunk]]:
    """Split chunks into steps of at most `step_bytes`, and let the event loop run between them.

    A reader that comes late gets all chunks of a long answer at once. A larger chunk is a step of
    its own.
    """
    step: list[Chunk] = []
    room_bytes = step_bytes
    for chunk in chunks:
        room_bytes -= len(chunk.value)
        if step and room_bytes < 0:
            yield step
            await asyncio.sleep(0)
            step, room_bytes = [], step_bytes - len(chunk.value)
        step.append(chunk)
    if step:
        yield step
