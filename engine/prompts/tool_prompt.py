"""Describes functions as text to a model whose chat template does not support tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.request import Chat, Message

_INTRODUCTION = (
    "You may call functions to help with the user's question. These are the functions, each one as "
    "a JSON object, between <tools></tools>:"
)
_CALL_INSTRUCTIONS = (
    "To call a function, answer with nothing but a JSON object with its name and arguments, "
    "between <tool_call></tool_call>:\n<tool_call>\n"
    '{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
)


def render_with_tools(chat: Chat, render: Callable[[Chat], str]) -> str:
    """Render a chat, with its tools as text if the template drops them."""
    prompt = render(chat)
    return prompt if names_all_tools(chat, prompt) else render(tools_as_text(chat))


def names_all_tools(chat: Chat, prompt: str) -> bool:
    """Return whether a prompt names every function; some templates drop them."""
    return all(json.dumps(tool["function"]["name"]) in prompt for tool in chat.tools)


def tools_as_text(chat: Chat) -> Chat:
    """Return a chat with its functions, calls and results as plain text.

    The wording is the one that models of the Hermes and Qwen families were trained with.
    """
    tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in chat.tools)
    description = f"{_INTRODUCTION}\n<tools>\n{tools}\n</tools>\n\n{_CALL_INSTRUCTIONS}"
    messages = _to_plain_messages(chat.messages)
    if messages and messages[0].role == "system":
        first = messages[0]
        messages[0] = replace(first, content=f"{first.content}\n\n{description}")
    else:
        messages.insert(0, Message("system", description))
    return replace(chat, messages=tuple(messages), tools=())


def tool_calls_as_text(chat: Chat) -> Chat:
    """Return a chat with its calls and results as plain text; its functions are kept."""
    return replace(chat, messages=tuple(_to_plain_messages(chat.messages)))


def _to_plain_messages(messages: Sequence[Message]) -> list[Message]:
    plain: list[Message] = []
    for message in messages:
        content = message.content
        for call in message.tool_calls:
            function = call["function"]
            call_json = (
                f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'
            )
            content = f"{content}\n<tool_call>\n{call_json}\n</tool_call>".lstrip("\n")
        if message.role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            plain.append(Message("user", content))
        else:
            plain.append(replace(message, content=content, tool_calls=(), tool_call_id=None))
    return plain
