"""The marks of a model's reasoning, and whether a chat template begins an answer inside it."""

from __future__ import annotations

from collections.abc import Mapping

from engine.request import Chat, Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# The marks before and after the reasoning, as the chat templates of the families have them.
REASONING_MARKS: Mapping[str, str] = {
    # Qwen, DeepSeek, SmolLM and most others.
    THINK_OPEN: THINK_CLOSE,
    "<thinking>": "</thinking>",
    # Mistral.
    "[THINK]": "[/THINK]",
    # Gemma 4.
    "<|channel>thought": "<channel|>",
    # Harmony (gpt-oss).
    "<|channel|>analysis<|message|>": "<|end|>",
    # Seed-OSS.
    "<seed:think>": "</seed:think>",
}
# The smallest chat, for trying out a template.
PROBE_CHAT = Chat((Message("user", "a"),))


def starts_in_think(prompt: str) -> bool:
    """Return whether a rendered prompt ends with `<think>`, the one mark that grammars know.

    With another mark, a grammar applies from the first token on.
    """
    return prompt.rstrip().endswith(THINK_OPEN)


def starts_in_reasoning(prompt: str) -> bool:
    """Return whether a rendered prompt ends with an open reasoning mark.

    The answer then contains only the closing mark.
    """
    return prompt.rstrip().endswith(tuple(REASONING_MARKS))
