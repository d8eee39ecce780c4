"""Read `tools` and `tool_choice` of chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.core.tools import (
    NO_TOOLS,
    FunctionTool,
    Tools,
    build_tools,
    read_functions,
    read_parallel,
)
from handler.errors import InvalidRequest

_KEYS = ("tools", "tool_choice", "parallel_tool_calls")
_ALLOWED_CHOICES = 'tool_choice must be "none", "auto", "required" or name a function of tools'


def read_tools(body: JsonObject) -> Tools:
    """Return the functions of a chat. Raises InvalidRequest, naming the wrong parameter."""
    if body.keys().isdisjoint(_KEYS):
        return NO_TOOLS
    definitions = read_functions(body.get("tools"))
    parallel = read_parallel(body.get("parallel_tool_calls"))
    choice = body.get("tool_choice")
    required_names = _read_required_names(choice, definitions)
    if choice == "none":
        return NO_TOOLS
    return build_tools(definitions, required_names, parallel=parallel)


def _read_required_names(choice: Any, definitions: Sequence[FunctionTool]) -> Sequence[str]:
    """Return the functions of which the model must call one. Raises InvalidRequest."""
    if choice in (None, "none", "auto"):
        return ()
    names = [tool["function"]["name"] for tool in definitions]
    if choice == "required":
        if not names:
            raise InvalidRequest("tool_choice must come with tools", "tool_choice")
        return names
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"{_ALLOWED_CHOICES}, got {describe_value(choice)}", "tool_choice")
    return (name,)
