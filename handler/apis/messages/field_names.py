"""Name the client's fields in errors about the translated body."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handler.apis.field_names import rename_field
from handler.errors import InvalidRequest

# The fields of chat completions whose names differ.
_NAMES: Mapping[str, str] = {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
}
_ITEM = re.compile(r"(messages|tools)\[(\d+)\](.*)")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The client's fields from which a body of chat completions was translated.

    `messages` has the client's path for each message of the translated body, and `tools` has the
    client's path for each of its tools.
    """

    messages: Sequence[str] = ()
    tools: Sequence[str] = ()

    def rename(self, error: InvalidRequest) -> InvalidRequest:
        """Return an error about the translated body as one about the client's body."""
        return rename_field(error, self._rename)

    def _rename(self, path: str) -> str:
        if (item := _ITEM.fullmatch(path)) is None:
            return _NAMES.get(path, path)
        kind, index, rest = item[1], int(item[2]), item[3]
        paths = self.messages if kind == "messages" else self.tools
        if index >= len(paths):
            return path
        if kind == "messages":
            # The text of a message may come from several blocks.
            return paths[index]
        rest = rest.removeprefix(".function")
        if rest.startswith(".parameters"):
            rest = rest.replace(".parameters", ".input_schema", 1)
        return paths[index] + rest
