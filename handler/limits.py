"""RunPod's size limits, checked here because over there a result that is too large is just gone.

The cloud answers the worker's post with 400 and the client then sees a job COMPLETED without an
output (runpod-python#309). So it fails before it is posted, with a sentence that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine import Delta
from handler.errors import ResultTooLarge

# Documented by RunPod: result of /run, of /runsync (whose job ids start with "sync-"), one chunk.
RUN_RESULT_BYTES = 10_000_000
RUNSYNC_RESULT_BYTES = 20_000_000
STREAM_CHUNK_BYTES = 1_000_000

# Characters in one partial output. JSON may take 6 bytes for one (\u0000), and a partial holds its
# text twice, the second time perhaps with quotes, comma and space around every character: 16 bytes
# each, which with the envelope still fits a chunk.
PARTIAL_CHARS = 60_000


def result_limit(job_id: str) -> int:
    """Return how many bytes of result the platform takes for a job."""
    return RUNSYNC_RESULT_BYTES if job_id.startswith("sync-") else RUN_RESULT_BYTES


def wire_size(output: Any) -> int:
    """Return the bytes of an output as the SDK posts it. Raises ValueError on NaN."""
    return len(json.dumps(output, ensure_ascii=False, allow_nan=False).encode())


def check_result(job_id: str, size: int) -> None:
    """Refuse a result of `size` bytes that the platform would drop.

    Raises:
        ResultTooLarge: with both sizes and the remedy.
    """
    limit = result_limit(job_id)
    if size > limit:
        raise ResultTooLarge(
            f"the result is {size / 1e6:.1f} MB and RunPod takes {limit / 1e6:.0f} MB for it: "
            "lower max_tokens, or send stream=false, which returns the text twice instead of thrice"
        )


def check_chunk(size: int) -> None:
    """Refuse one partial output that is larger than a stream chunk may be.

    Raises:
        ResultTooLarge: with both sizes and the remedy.
    """
    if size > STREAM_CHUNK_BYTES:
        raise ResultTooLarge(
            f"one output is {size / 1e6:.1f} MB and RunPod takes {STREAM_CHUNK_BYTES / 1e6:.0f} MB "
            "in a stream: lower max_tokens, or run the worker with STREAM_MODE=aggregate"
        )


def split(batch: list[Delta], max_chars: int = PARTIAL_CHARS) -> Iterator[list[Delta]]:
    """Yield a batch in parts of at most `max_chars` characters, cutting a longer delta."""
    part: list[Delta] = []
    room = max_chars
    for delta in batch:
        while len(delta.text) > max_chars:
            if part:
                yield part
                part, room = [], max_chars
            yield [Delta(delta.text[:max_chars])]
            delta = replace(delta, text=delta.text[max_chars:])
        if len(delta.text) > room:
            yield part
            part, room = [], max_chars
        part.append(delta)
        room -= len(delta.text)
    if part:
        yield part
