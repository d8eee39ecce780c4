"""Read `tools` and `tool_choice` of a response."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.core.tools import (
    MAX_TOOLS,
    NO_TOOLS,
    FunctionTool,
    Tools,
    build_tools,
    read_function,
    read_parallel,
    read_strict_names,
)
from handler.errors import InvalidRequest

_INPUT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTools:
    """The functions of a chat, and which of them are custom tools.

    A custom tool takes free text. The model gets it as a function with one argument, `input`.
    """

    tools: Tools = NO_TOOLS
    custom_names: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def read_tools(body: JsonObject) -> ResponseTools:
    """Return the tools of a body, from which the model may or must choose. Raises InvalidRequest.

    Tools of types that this server does not have are skipped with a warning: agents offer all that
    their own provider has.
    """
    raw = body.get("tools")
    if raw is None:
        raw = []
    if not isinstance(raw, list) or len(raw) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must be an array of up to {MAX_TOOLS} tools, got {describe_value(raw)}", "tools"
        )
    definitions: list[FunctionTool] = []
    custom_names, skipped = set[str](), dict[str, None]()
    functions = dict[str, Any]()
    for index, tool in enumerate(raw):
        path = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str):
            raise InvalidRequest(
                f"{path} must be an object with a type, got {describe_value(tool)}", "tools"
            )
        if kind == "function":
            name, description = tool.get("name"), tool.get("description")
            definitions.append(read_function(name, description, tool.get("parameters"), path))
            functions[path] = tool
        elif kind == "custom":
            definitions.append(_read_custom_tool(tool, path))
            custom_names.add(str(tool.get("name")))
        else:
            skipped[kind[:64]] = None
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        definitions = _keep_allowed(choice.get("tools"), definitions)
    names = [tool["function"]["name"] for tool in definitions]
    required_names = _read_required_names(choice, names)
    parallel = read_parallel(body.get("parallel_tool_calls"))
    tools = NO_TOOLS
    if choice != "none":
        is_named = isinstance(choice, Mapping) and choice.get("type") != "allowed_tools"
        several = body.get("parallel_tool_calls") is True and not is_named
        tools = build_tools(
            definitions,
            required_names,
            parallel=parallel,
            several=several,
            strict_names=read_strict_names(functions),
        )
    warnings = tuple(f"tools of type {each} are not supported and were skipped" for each in skipped)
    return ResponseTools(tools=tools, custom_names=frozenset(custom_names), warnings=warnings)


def _keep_allowed(allowed: Any, definitions: Sequence[FunctionTool]) -> list[FunctionTool]:
    """Return the tools that a choice of the type `allowed_tools` names. Raises InvalidRequest."""
    if not isinstance(allowed, list) or not all(isinstance(each, Mapping) for each in allowed):
        raise InvalidRequest(
            f"tool_choice.tools must be an array of tools, got {describe_value(allowed)}",
            "tool_choice.tools",
        )
    names = {each.get("name") for each in allowed if isinstance(each.get("name"), str)}
    return [tool for tool in definitions if tool["function"]["name"] in names]


def _read_custom_tool(tool: JsonObject, path: str) -> FunctionTool:
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"{path}.description must be a string, got {describe_value(description)}", "tools"
        )
    text = description or ""
    tool_format = tool.get("format")
    if isinstance(tool_format, Mapping) and isinstance(tool_format.get("definition"), str):
        # A grammar of the input: described to the model, because it cannot be enforced in a string.
        text += f"\nThe input has this {tool_format.get('syntax', '')} grammar:\n"
        text += tool_format["definition"]
    return read_function(tool.get("name"), text, _INPUT_SCHEMA, path)


def _read_required_names(choice: Any, names: Sequence[str]) -> Collection[str]:
    """Return the tools of which the model must call one. Raises InvalidRequest."""
    if choice in (None, "auto", "none"):
        return ()
    if isinstance(choice, Mapping):
        kind, name = choice.get("type"), choice.get("name")
        if kind in ("function", "custom") and name in names:
            return (str(name),)
        if kind == "allowed_tools" and choice.get("mode") == "auto":
            return ()
        if kind == "allowed_tools":
            choice = choice.get("mode")
    if choice != "required":
        raise InvalidRequest(
            'tool_choice must be "none", "auto", "required" or name a tool of tools, '
            f"got {describe_value(choice)}",
            "tool_choice",
        )
    if not names:
        raise InvalidRequest("tool_choice must come with tools", "tool_choice")
    return names
