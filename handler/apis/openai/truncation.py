"""Leave out the oldest turns of a conversation that does not fit into the model's context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from engine import Slot
from engine.errors import PromptTooLong
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.service import OpenAIService

T = TypeVar("T")

# The estimate of a turn's tokens is its share of the characters, so aim a little below the limit.
_TARGET = 0.9
CHAT_ROUTE = "/v1/chat/completions"
_INSTRUCTIONS = ("system", "developer")


async def run_truncated(
    openai: OpenAIService,
    call: OpenAICall,
    body: Mapping[str, Any],
    run: Callable[[OpenAICall, Slot | None], Awaitable[T]],
    slot: Slot | None,
) -> T:
    """Run a chat; again without its oldest turns if it is longer than the context.

    `body` is the body that `call` was parsed from. The answer has a warning about what was left
    out. Raises EngineError; PromptTooLong if the last turn alone is too long.
    """
    chat, messages = call, body["messages"]
    while True:
        try:
            return await run(chat, slot)
        except PromptTooLong as error:
            tokens, limit = error.details.get("prompt_tokens"), error.details.get("context_length")
            if not isinstance(tokens, int) or not isinstance(limit, int):
                raise
            kept = drop_oldest_turns(messages, tokens, limit)
            if len(kept) == len(messages):
                raise
            messages = kept
        shortened = {**body, "messages": messages}
        chat = await openai.parse_call_async(CHAT_ROUTE, shortened, priority=call.priority)
        chat.timeout_s = call.timeout_s
        count = len(body["messages"]) - len(messages)
        chat.add_warnings(
            *call.request.warnings,
            f"truncation: the {count} oldest messages were left out, because the prompt was "
            "longer than the context",
        )
        # The first attempt may have used it up.
        slot = None


def drop_oldest_turns(
    messages: Sequence[Mapping[str, Any]], prompt_tokens: int, context_length: int
) -> list[Mapping[str, Any]]:
    """Return the messages without the oldest turns, at least one less; all if there is only one.

    A turn is a message of the user and all up to the next one, so that no result of a tool loses
    its call. Instructions stay. `prompt_tokens` is the size of the prompt that was too long.
    """
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        if message["role"] in _INSTRUCTIONS:
            continue
        if message["role"] == "user" or not turns:
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


def _size(message: Mapping[str, Any]) -> int:
    calls = message.get("tool_calls") or ()
    return len(message.get("content") or "") + sum(
        len(call["function"]["name"]) + len(call["function"]["arguments"]) for call in calls
    )
