"""Stream a call as blocks of server-sent events, including its errors and `[DONE]`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from engine import Delta
from handler.apis.core.parallel import CompletedGenerations, ParallelGenerations, Part
from handler.apis.core.wire_format import escape_line_separators
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.wire_format import DONE, error_event
from handler.delivery.limits import PARTIAL_CHARS, split_events, split_into_steps
from handler.errors import error_info
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer


async def stream_events(
    call: OpenAICall,
    generations: ActiveGeneration | ParallelGenerations | CompletedGenerations,
    interval_s: float = 0.0,
    part_chars: int = PARTIAL_CHARS,
) -> AsyncGenerator[bytes, None]:
    """Yield a streamed answer as blocks of complete server-sent events, `[DONE]` last.

    Text that arrives while the reader is busy becomes one event, or several of at most `part_chars`
    characters. An error after the first text is sent as an event and ends the stream.
    """
    reply_format = call.parsed.reply_format
    events, is_parsed = b"", reply_format is not None and bool(reply_format.functions)
    try:
        if isinstance(generations, ActiveGeneration):
            events = call.encode_opening(generations.created)
            async for batch in generations.batches(interval_s):
                async for deltas in split_into_steps(batch, part_chars, is_parsed=is_parsed):
                    for block in _split_blocks(events + call.encode_delta(deltas)):
                        yield block
                    events = b""
            events += call.encode_closing(await generations.build_answer())
        else:
            opened, unfinished = set[int](), call.request_count
            async for parts in generations.batches(interval_s):
                for index, part in _merge_deltas(parts):
                    if index not in opened:
                        opened.add(index)
                        events += call.encode_opening(generations.created, index)
                    if isinstance(part, CompletedAnswer):
                        events += call.encode_closing(part, index)
                        unfinished -= 1
                    else:
                        async for deltas in split_into_steps(part, part_chars, is_parsed=is_parsed):
                            events += call.encode_delta(deltas, index)
                if unfinished:
                    for block in _split_blocks(events):
                        yield block
                    events = b""
        for block in _split_blocks(events + DONE):
            yield block
    except Exception as error:
        # Any error: a stream that ends without one looks like a complete answer to some clients.
        failure = error_event(error_info(error), call.dialect)
        for block in _split_blocks(events + failure + DONE):
            yield block


def _split_blocks(events: bytes) -> Sequence[bytes]:
    """Return blocks of complete events that each fit into a job's chunk, line ends escaped."""
    return split_events(escape_line_separators(events))


def _merge_deltas(parts: Sequence[Part]) -> Sequence[Part]:
    """Join the deltas of each choice, so that they become one event."""
    if len(parts) == 1:
        return parts
    deltas: dict[int, list[Delta]] = {}
    merged: list[Part] = []
    for index, part in parts:
        if isinstance(part, CompletedAnswer):
            merged.append((index, part))
        elif index in deltas:
            deltas[index] += part
        else:
            deltas[index] = [*part]
            merged.append((index, deltas[index]))
    return merged
