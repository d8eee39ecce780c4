"""A model's output taken apart."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function; `arguments` is JSON text, incomplete if a limit has cut it."""

    id: str
    name: str
    arguments: str

    def to_json(self) -> str:
        """Return the call as JSON, with the arguments as an object."""
        name = orjson.dumps(self.name).decode()
        return f'{{"name": {name}, "arguments": {self.arguments}}}'

    def read_arguments(self) -> dict[str, Any] | None:
        """Return the arguments; None if they are no JSON object, because a limit has cut them.

        Such a call is no call for an API that has the arguments as an object: without them it
        would look like a call without any.
        """
        try:
            arguments = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return arguments if isinstance(arguments, dict) else None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reasoning, the text and the tool calls of one output.

    `text_starts` has, for each piece of the text, its position in the text and in the output.
    `reasoning_end` is the position in the output after the reasoning and its mark.
    """

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    text_starts: tuple[tuple[int, int], ...] = ((0, 0),)
    reasoning_end: int = 0

    @property
    def is_all_text(self) -> bool:
        """Whether the output is the text."""
        return not self.reasoning and not self.calls and self.text_starts == ((0, 0),)

    def has_text_at(self, position: int) -> bool:
        """Return whether the text has the character at a position in the output.

        Also at the end of the output, if the text ends there: half a character may follow.
        """
        index = bisect_right(self.text_starts, position, key=lambda starts: starts[1]) - 1
        if index < 0 or not self.text:
            return False
        if index == len(self.text_starts) - 1:
            in_text, in_output = self.text_starts[index]
            return position <= in_output + len(self.text) - in_text
        in_text, in_output = self.text_starts[index]
        return position - in_output < self.text_starts[index + 1][0] - in_text

    def output_position(self, position: int) -> int:
        """Return the position in the output of a position in the text."""
        index = bisect_right(self.text_starts, position, key=lambda starts: starts[0]) - 1
        in_text, in_output = self.text_starts[max(index, 0)]
        return in_output + position - in_text

    def output_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the output of a span of the text."""
        if start == end:
            return self.output_position(start), self.output_position(start)
        return self.output_position(start), self.output_position(end - 1) + 1
