"""The model's thoughts: their marks, and where a chat template begins an answer with them."""

from __future__ import annotations

from engine.request import Chat, Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# What a template is tried with: the least that every chat has.
PROBE_CHAT = Chat((Message("user", "a"),))


def starts_in_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends where thoughts begin: only their end is then in the answer."""
    return prompt.rstrip().endswith(THINK_OPEN)
