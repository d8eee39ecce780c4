"""Stream a call as blocks of server-sent events, including its errors and `[DONE]`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

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
    is_parsed = reply_format is not None and bool(reply_format.functions)
    encoder = _Encoder(call, part_chars, is_parsed=is_parsed)
    if isinstance(generations, ActiveGeneration):
        stream = encoder.stream_choice(generations, interval_s)
    else:
        stream = encoder.stream_choices(generations, interval_s)
    try:
        async with aclosing(stream):
            async for block in stream:
                yield block
    except Exception as error:
        # Any error: a stream that ends without one looks like a complete answer to some clients.
        encoder.pending += error_event(error_info(error), call.dialect)
    encoder.pending += DONE
    for block in encoder.take_blocks():
        yield block


class _Encoder:
    """Encodes the events of one stream; `pending` has the events that are not sent yet.

    The last events of an answer are sent together with `[DONE]`.
    """

    def __init__(self, call: OpenAICall, part_chars: int, *, is_parsed: bool) -> None:
        self._call = call
        self._part_chars = part_chars
        self._is_parsed = is_parsed
        self.pending = b""

    def take_blocks(self) -> Sequence[bytes]:
        """Return the pending events as blocks that each fit into a job's chunk."""
        events, self.pending = self.pending, b""
        return split_events(escape_line_separators(events))

    async def stream_choice(
        self, generation: ActiveGeneration, interval_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of an answer with one choice, except the last ones."""
        self.pending = self._call.encode_opening(generation.created)
        async for batch in generation.batches(interval_s):
            for step, deltas in enumerate(self._split(batch)):
                if step:
                    await asyncio.sleep(0)
                self.pending += self._call.encode_delta(deltas)
                for block in self.take_blocks():
                    yield block
        self.pending += self._call.encode_closing(await generation.build_answer())

    async def stream_choices(
        self, generations: ParallelGenerations | CompletedGenerations, interval_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of an answer with several choices, except the last ones."""
        call, opened, unfinished = self._call, set[int](), self._call.request_count
        async for parts in generations.batches(interval_s):
            for index, part in _merge_deltas(parts):
                if index not in opened:
                    opened.add(index)
                    self.pending += call.encode_opening(generations.created, index)
                if isinstance(part, CompletedAnswer):
                    self.pending += call.encode_closing(part, index)
                    unfinished -= 1
                else:
                    for step, deltas in enumerate(self._split(part)):
                        if step:
                            await asyncio.sleep(0)
                        self.pending += call.encode_delta(deltas, index)
            for block in self.take_blocks() if unfinished else ():
                yield block

    def _split(self, batch: list[Delta]) -> Iterable[list[Delta]]:
        return split_into_steps(batch, self._part_chars, is_parsed=self._is_parsed)


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
