"""Keeps the texts of messages from becoming control tokens, which would forge turns of a chat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from secrets import token_hex
from typing import Any, NamedTuple

from engine.capabilities import Capabilities
from engine.request import Chat, ChatImage, GenerationRequest, Message

_Change = Callable[[str], str]


class RenderedChat(NamedTuple):
    """A rendered chat in parts: text of the template and of messages, alternating with marks.

    The marks are the control tokens that messages have as text.
    """

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(self.parts)

    @property
    def has_marks(self) -> bool:
        """Whether a message has a control token as text."""
        return len(self.parts) > 1

    @property
    def pieces(self) -> tuple[str, ...]:
        """The texts to tokenize one by one, with special tokens parsed.

        A mark is cut after its first character, and neither half of it is a special token.
        """
        return tuple(
            chain.from_iterable(
                (part[:1], part[1:]) if index % 2 else (part,)
                for index, part in enumerate(self.parts)
            )
        )


class ControlMarks:
    """The texts of a model's control tokens. Immutable.

    In turns of the assistant, `answer_marks` keep their meaning: they are the marks of its
    reasoning and of its calls.
    """

    def __init__(self, marks: Iterable[str], answer_marks: Iterable[str] = ()) -> None:
        marks, answer_marks = frozenset(marks), frozenset(answer_marks)
        self._pattern = _compile(marks)
        self._assistant_pattern = _compile(marks - answer_marks)

    def render(self, chat: Chat, render: Callable[[Chat], str]) -> RenderedChat:
        """Render a chat whose messages may contain control tokens.

        The template gets a random text in the place of each, so that none of it is lost.
        """
        hidden_marks: list[str] = []
        token = token_hex(8)

        def hide(match: re.Match[str]) -> str:
            hidden_marks.append(match[0])
            return f"q{token}z{len(hidden_marks) - 1}z"

        hidden = self._replace(chat, hide)
        if not hidden_marks:
            return RenderedChat((render(chat),))
        parts = re.split(f"q{token}z([0-9]+)z", render(hidden))
        parts[1::2] = [hidden_marks[int(number)] for number in parts[1::2]]
        return RenderedChat(tuple(parts))

    def break_marks(self, chat: Chat) -> Chat:
        """Return the chat with a space after the first character of each control token."""
        return self._replace(chat, lambda match: f"{match[0][:1]} {match[0][1:]}")

    def _replace(self, chat: Chat, change: Callable[[re.Match[str]], str]) -> Chat:
        def change_turn(message: Message) -> Message:
            is_assistant = message.role == "assistant"
            pattern = self._assistant_pattern if is_assistant else self._pattern
            return _change_message(message, lambda text: pattern.sub(change, text))

        return replace(
            chat,
            messages=tuple([change_turn(message) for message in chat.messages]),
            tools=tuple(
                [
                    _change_tool(tool, lambda text: self._pattern.sub(change, text))
                    for tool in chat.tools
                ]
            ),
        )


def break_control_marks(
    request: GenerationRequest, capabilities: Capabilities
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request with broken control tokens if the engine would take them for such.

    An engine that gets the prompt as text reads it with all special tokens. llama.cpp gets it so if
    there are images, and the RKLLM runtime if it applies its own template.
    """
    prompt = request.prompt
    if not isinstance(prompt, Chat) or not capabilities.control_tokens:
        return request, ()
    if capabilities.plain_marks and not prompt.images:
        return request, ()
    broken = ControlMarks(capabilities.control_tokens, capabilities.answer_marks).break_marks(
        prompt
    )
    if broken == prompt:
        return request, ()
    warning = (
        "messages: special tokens of the model in texts got a space after their first character, "
        "because they would end the turn"
    )
    return replace(request, prompt=broken), (warning,)


def _compile(marks: Iterable[str]) -> re.Pattern[str]:
    # The longest first, because one may begin with another. Without marks nothing matches.
    ordered = sorted(filter(None, marks), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _change_message(message: Message, change: _Change) -> Message:
    content, images = _change_content(message, change)
    calls = tuple(
        {
            **call,
            "function": {
                **call["function"],
                "arguments": change(call["function"]["arguments"]),
            },
        }
        for call in message.tool_calls
    )
    return replace(
        message,
        content=content,
        images=images,
        reasoning=change(message.reasoning),
        name=None if message.name is None else change(message.name),
        tool_calls=calls,
    )


def _change_content(message: Message, change: _Change) -> tuple[str, tuple[ChatImage, ...]]:
    """Return the changed content, and the images at their new positions in it."""
    content, images, start = "", [], 0
    for image in message.images:
        content += change(message.content[start : image.position])
        images.append(replace(image, position=len(content)))
        start = image.position
    return content + change(message.content[start:]), tuple(images)


def _change_tool(tool: Mapping[str, Any], change: _Change) -> Mapping[str, Any]:
    """Return a tool with changed texts, at any depth; the names of members stay."""
    return {name: _change_value(value, change) for name, value in tool.items()}


def _change_value(value: Any, change: _Change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return _change_tool(value, change)
    if isinstance(value, list | tuple):
        return [_change_value(each, change) for each in value]
    return value
