"""Functions told to a model whose own template has no place for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.request import Chat, Message

_INTRODUCTION = (
    "You may call functions to help with the user's question. These are the functions, each one as "
    "a JSON object, between <tools></tools>:"
)
_HOW = (
    "To call a function, answer with nothing but a JSON object with its name and arguments, "
    "between <tool_call></tool_call>:\n<tool_call>\n"
    '{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
)


def render_with_tools(chat: Chat, render: Callable[[Chat], str]) -> str:
    """Return what a template makes of a chat, its functions told as text if it drops them."""
    prompt = render(chat)
    return prompt if names_all_tools(chat, prompt) else render(tools_as_text(chat))


def names_all_tools(chat: Chat, render_with_tools: str) -> bool:
    """Whether a rendered prompt names every function: a template without a place for them drops."""
    return all(json.dumps(tool["function"]["name"]) in render_with_tools for tool in chat.tools)


def tools_as_text(chat: Chat) -> Chat:
    """Return a chat that tells of its functions, and of calls and their results, as plain text.

    The words are those that models of the Hermes and Qwen families were trained with.
    """
    tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in chat.tools)
    told = f"{_INTRODUCTION}\n<tools>\n{tools}\n</tools>\n\n{_HOW}"
    messages = _plain(chat.messages)
    if messages and messages[0].role == "system":
        first = messages[0]
        messages[0] = replace(first, content=f"{first.content}\n\n{told}")
    else:
        messages.insert(0, Message("system", told))
    return replace(chat, messages=tuple(messages), tools=())


def tool_calls_as_text(chat: Chat) -> Chat:
    """Return a chat whose calls and their results are plain text, functions told of or not."""
    return replace(chat, messages=tuple(_plain(chat.messages)))


def _plain(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    for message in messages:
        content = message.content
        for call in message.tool_calls:
            function = call["function"]
            said = (
                f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'
            )
            content = f"{content}\n<tool_call>\n{said}\n</tool_call>".lstrip("\n")
        if message.role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            found.append(Message("user", content))
        else:
            found.append(Message(message.role, content, message.name))
    return found
