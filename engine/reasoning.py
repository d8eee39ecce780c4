"""The marks of a model's reasoning, and whether a chat template begins an answer inside it."""

from __future__ import annotations

from engine.request import Chat, Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# The smallest chat, for trying out a template.
PROBE_CHAT = Chat((Message("user", "a"),))


def starts_in_reasoning(prompt: str) -> bool:
    """Return whether a rendered prompt ends with an open reasoning mark.

    The answer then contains only the closing mark.
    """
    return prompt.rstrip().endswith(THINK_OPEN)
