"""Stream one chat's answer as the parts of a reply, for APIs other than chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from engine.reply.parser import ReplyParser
from engine.reply.parts import Part, TextPart
from handler.delivery.limits import PARTIAL_CHARS, split_into_steps
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer

# With an event for each token, the event loop runs after so many of them: a few milliseconds.
_TOKENS_PER_STEP = 200


async def stream_reply(
    generation: ActiveGeneration,
    interval_s: float = 0.0,
    part_chars: int = PARTIAL_CHARS,
    *,
    by_token: bool = False,
) -> AsyncGenerator[list[Part] | CompletedAnswer, None]:
    """Yield lists of new parts as they arrive, and the completed answer last.

    A part has at most `part_chars` characters. Lists may be empty: the text so far may be the start
    of a mark. With `by_token` each token has a list of its own, so that the same tokens give the
    same lists, however fast they arrive. Raises EngineError.
    """
    reply_format = generation.request.reply_format
    parser: ReplyParser | None = None
    if reply_format is not None:
        parser = ReplyParser(reply_format, starts_in_reasoning=generation.starts_in_reasoning)
    has_calls = reply_format is not None and bool(reply_format.functions)
    position = 0
    async for batch in generation.batches(interval_s):
        groups = [[delta] for delta in batch] if by_token else [batch]
        for number, group in enumerate(groups, start=1):
            if number % _TOKENS_PER_STEP == 0:
                await asyncio.sleep(0)
            steps = split_into_steps(group, part_chars, is_parsed=has_calls)
            for step, deltas in enumerate(steps):
                if step:
                    await asyncio.sleep(0)
                text = "".join(delta.text for delta in deltas)
                yield parser.push(text) if parser is not None else [TextPart(text, position)]
                position += len(text)
    answer = await generation.build_answer()
    if parser is not None:
        yield parser.close()
    yield answer
