"""A streamed call as blocks of server-sent events, failure and end among them (R19, R30)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import orjson

from engine import Delta
from handler.active_generation import ActiveGeneration
from handler.completed_answer import CompletedAnswer
from handler.errors import ErrorInfo, error_info
from handler.limits import PARTIAL_CHARS, split_deltas, split_events
from handler.openai.call import OpenAICall
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.parallel import CompletedGenerations, ParallelGenerations, Part

DONE = b"data: [DONE]\n\n"
# Unicode ends lines with them, and so do clients that read by `str.splitlines`, as httpx does: raw,
# they would cut an event in two, and what a model says next could pass for one.
_LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\u0085\u2028\u2029"}


async def stream_events(
    call: OpenAICall,
    running: ActiveGeneration | ParallelGenerations | CompletedGenerations,
    interval_s: float = 0.0,
    part_chars: int = PARTIAL_CHARS,
) -> AsyncGenerator[bytes, None]:
    """Yield a streamed answer as blocks of whole server-sent events, `[DONE]` last.

    Text that came while the reader was busy goes out as one event, or as several of at most
    `part_chars` characters. An error after the first text is an event of its own and then the end
    (R30).
    """
    block = b""
    try:
        if isinstance(running, ActiveGeneration):
            block = call.encode_opening(running.created)
            async for batch in running.batches(interval_s):
                for deltas in split_deltas(batch, part_chars):
                    for part in _blocks(block + call.encode_delta(deltas)):
                        yield part
                    block = b""
            block += call.encode_closing(await running.answer())
        else:
            opened, left = set[int](), len(call.requests)
            async for parts in running.batches(interval_s):
                for index, come in _gathered(parts):
                    if index not in opened:
                        opened.add(index)
                        block += call.encode_opening(running.created, index)
                    if isinstance(come, CompletedAnswer):
                        block += call.encode_closing(come, index)
                        left -= 1
                    else:
                        parts_of = split_deltas(come, part_chars)
                        block += b"".join([call.encode_delta(each, index) for each in parts_of])
                if left:
                    for part in _blocks(block):
                        yield part
                    block = b""
        for part in _blocks(block + DONE):
            yield part
    except Exception as error:
        # Whatever it was: a stream that just stops would look like a whole answer to some clients.
        for part in _blocks(block + error_event(error_info(error), call.dialect) + DONE):
            yield part


def _blocks(told: bytes) -> Sequence[bytes]:
    """Return whole events in blocks that each fit a chunk, and as lines to everybody."""
    if not told.isascii():
        for end, escaped in _LINE_ENDS.items():
            told = told.replace(end, escaped)
    return split_events(told)


def _gathered(parts: Sequence[Part]) -> Sequence[Part]:
    """Join the batches of each choice, so that one that came in several is one event."""
    if len(parts) == 1:
        return parts
    batches: dict[int, list[Delta]] = {}
    found: list[Part] = []
    for index, part in parts:
        if isinstance(part, CompletedAnswer):
            found.append((index, part))
        elif index in batches:
            batches[index] += part
        else:
            batches[index] = [*part]
            found.append((index, batches[index]))
    return found


def error_event(failure: ErrorInfo, dialect: Dialect = OPENAI) -> bytes:
    """Return a failure as an event."""
    told = failure.named_error() if dialect.named_errors else failure.openai_error()
    return b"data: " + orjson.dumps(told) + b"\n\n"
