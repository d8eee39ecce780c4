"""Leave out the oldest turns of a conversation that does not fit into the model's context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from engine import Chat, Message, Slot
from engine.errors import PromptTooLong
from handler.apis.core.parsed_call import ParsedCall

T = TypeVar("T")

# The estimate of a turn's tokens is its share of the characters, so aim a little below the limit.
_TARGET = 0.9


async def run_truncated(
    call: ParsedCall,
    run: Callable[[ParsedCall, Slot | None], Awaitable[T]],
    slot: Slot | None,
) -> T:
    """Run a call; a chat again without its oldest turns if it is longer than the context.

    The answer has a warning about what was left out. Raises EngineError; PromptTooLong if the last
    turn alone is too long.
    """
    [chat], shortened = call.prompts, call
    while True:
        try:
            return await run(shortened, slot)
        except PromptTooLong as error:
            tokens, limit = error.details.get("prompt_tokens"), error.details.get("context_length")
            if not isinstance(tokens, int) or not isinstance(limit, int):
                raise
            [prompt] = shortened.prompts
            if not isinstance(chat, Chat) or not isinstance(prompt, Chat):
                raise
            kept = drop_oldest_turns(prompt.messages, tokens, limit)
            if len(kept) == len(prompt.messages):
                raise
        shortened = replace(
            call,
            prompts=(replace(prompt, messages=tuple(kept)),),
            warnings=(
                *call.warnings,
                f"truncation: the {len(chat.messages) - len(kept)} oldest messages were left out, "
                "because the prompt was longer than the context",
            ),
        )
        # The first attempt may have used it up.
        slot = None


def drop_oldest_turns(
    messages: Sequence[Message], prompt_tokens: int, context_length: int
) -> list[Message]:
    """Return the messages without the oldest turns, at least one less; all if there is only one.

    A turn is a message of the user and all up to the next one, so that no result of a tool loses
    its call. Instructions stay. `prompt_tokens` is the size of the prompt that was too long.
    """
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    sizes = [sum(_size(messages[index]) for index in turn) for turn in turns]
    total = sum(map(_size, messages))
    excess = total - total * _TARGET * context_length / max(prompt_tokens, 1)
    dropped: set[int] = set()
    for turn, size in zip(turns[:-1], sizes, strict=False):
        dropped.update(turn)
        excess -= size
        if excess <= 0:
            break
    return [message for index, message in enumerate(messages) if index not in dropped]


def _size(message: Message) -> int:
    return len(message.content) + sum(
        len(call["function"]["name"]) + len(call["function"]["arguments"])
        for call in message.tool_calls
    )
