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
    read_strict_names,
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
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, definitions = _read_allowed(choice.get("allowed_tools"), definitions)
    required_names = _read_required_names(choice, definitions)
    if choice == "none":
        return NO_TOOLS
    several = body.get("parallel_tool_calls") is True and not isinstance(choice, Mapping)
    functions = {
        f"tools[{index}].function": tool["function"]
        for index, tool in enumerate(body.get("tools") or ())
    }
    return build_tools(
        definitions,
        required_names,
        parallel=parallel,
        several=several,
        strict_names=read_strict_names(functions),
    )


def _read_allowed(
    allowed: Any, definitions: Sequence[FunctionTool]
) -> tuple[str, Sequence[FunctionTool]]:
    """Return the mode of OpenAI's `allowed_tools`, and the functions. Raises InvalidRequest."""
    mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise InvalidRequest(
            "tool_choice.allowed_tools must be an object with a mode, auto or required, and "
            f"tools, got {describe_value(allowed)}",
            "tool_choice.allowed_tools",
        )
    names = [name for tool in tools for name in _read_required_names(tool, definitions)]
    return mode, [tool for tool in definitions if tool["function"]["name"] in names]


def _read_required_names(choice: Any, definitions: Sequence[FunctionTool]) -> Sequence[str]:
    """Return the functions of which the model must call one. Raises InvalidRequest."""
    if isinstance(choice, str | None) and choice in (None, "none", "auto"):
        return ()
    names = [tool["function"]["name"] for tool in definitions]
    # The second is Mistral's and Anthropic's word for it.
    if choice in ("required", "any"):
        if not names:
            raise InvalidRequest("tool_choice must come with tools", "tool_choice")
        return names
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"{_ALLOWED_CHOICES}, got {describe_value(choice)}", "tool_choice")
    return (name,)
