"""The marks of a model's reasoning, and whether a chat template begins an answer inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

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


# The beginning of an answer, before the part that a grammar holds: nothing, the rest of the
# reasoning that the prompt has opened, or reasoning if the model begins with it.
Thinking = Literal["none", "open", "optional"]


def find_thinking(prompt: str | Sequence[int], *, may_think: bool) -> Thinking:
    """Return what an answer to a rendered prompt has before the part that a grammar holds.

    `<think>` is the one mark that grammars know. With another one, a grammar applies from the first
    token on.
    """
    if isinstance(prompt, str) and prompt.rstrip().endswith(THINK_OPEN):
        return "open"
    return "optional" if may_think else "none"


def continue_last(chat: Chat, render: Callable[[Chat], str]) -> str:
    """Render a chat; if its last message is to be continued, the prompt ends with its content.

    A template that opens the model's reasoning for every answer is given its end first, unless the
    content has the reasoning itself.
    """
    if not chat.continues_last:
        return render(chat)
    *earlier, last = chat.messages
    prompt = render(replace(chat, messages=tuple(earlier), continues_last=False))
    for opening, closing in REASONING_MARKS.items():
        if prompt.rstrip().endswith(opening):
            if last.content.lstrip().startswith(opening):
                prompt = prompt.rstrip().removesuffix(opening)
            elif closing not in last.content:
                prompt += f"{closing}\n\n"
    return prompt + last.content


def leaves_reasoning_open(text: str) -> bool:
    """Return whether a text has an opening mark of reasoning without the closing mark after it."""
    return any(
        text.rfind(opening) > text.rfind(closing) for opening, closing in REASONING_MARKS.items()
    )


def has_reasoning(template: str) -> bool:
    """Return whether a chat template has a mark of the model's reasoning."""
    return any(
        mark in template for marks in REASONING_MARKS.items() for mark in marks if mark != "<|end|>"
    )


def find_open_mark(prompt: str, output: str) -> str | None:
    """Return the mark that would close the reasoning that an output is in; None if it is in none.

    The prompt opens it at its end, or the output at its start: elsewhere a mark may be quoted.
    """
    for opening, closing in REASONING_MARKS.items():
        if prompt.rstrip().endswith(opening) or output.lstrip().startswith(opening):
            return None if closing in output else closing
    return None


def starts_in_reasoning(prompt: str) -> bool:
    """Return whether a rendered prompt ends with an open reasoning mark.

    The answer then contains only the closing mark.
    """
    return prompt.rstrip().endswith(tuple(REASONING_MARKS))
