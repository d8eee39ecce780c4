"""Leave out the oldest turns of a conversation that does not fit into the model's context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The estimate of a turn's tokens is its share of the characters, so aim a little below the limit.
_TARGET = 0.9
_INSTRUCTIONS = ("system", "developer")


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
