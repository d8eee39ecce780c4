"""Read `tools` and `tool_choice` of the Messages API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.core.tools import (
    NO_TOOLS,
    FunctionTool,
    Tools,
    build_tools,
    read_function,
    read_parallel,
    read_strict_names,
)
from handler.errors import InvalidRequest

_CHOICES = ("auto", "any", "tool", "none")


def read_tools(body: JsonObject) -> tuple[Tools, tuple[str, ...]]:
    """Return the tools of a body, and a warning for each one that was skipped.

    Tools with a type, such as `web_search_20250305`, have no schema and run at Anthropic or in the
    client.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    raw = body.get("tools")
    if raw is not None and not isinstance(raw, list):
        raise InvalidRequest(f"tools must be an array, got {describe_value(raw)}", "tools")
    definitions: list[FunctionTool] = []
    functions = dict[str, Any]()
    warnings: list[str] = []
    skipped = set[str]()
    for index, tool in enumerate(raw or ()):
        path = f"tools[{index}]"
        if not isinstance(tool, Mapping):
            raise InvalidRequest(
                f"{path} must be an object with name and input_schema, got {describe_value(tool)}",
                path,
            )
        kind = tool.get("type")
        if kind is None or kind == "custom":
            name, description = tool.get("name"), tool.get("description")
            schema = tool.get("input_schema")
            definitions.append(read_function(name, description, schema, path, "input_schema"))
            functions[path] = tool
            continue
        warnings.append(
            f"{path} was skipped: tools of type {describe_value(kind)} are not supported"
        )
        if isinstance(name := tool.get("name"), str):
            skipped.add(name)
    names = [tool["function"]["name"] for tool in definitions]
    strict_names = read_strict_names(functions)
    tools = _choose(body.get("tool_choice"), definitions, names, skipped, strict_names)
    return tools, tuple(warnings)


def _choose(
    choice: Any,
    definitions: list[FunctionTool],
    names: Collection[str],
    skipped: Collection[str],
    strict_names: Collection[str],
) -> Tools:
    """Return the tools from which the model may or must choose. Raises InvalidRequest."""
    if choice is None:
        return build_tools(definitions, strict_names=strict_names)
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in _CHOICES:
        raise InvalidRequest(
            f"tool_choice must be an object with the type {', '.join(_CHOICES)}, "
            f"got {describe_value(choice)}",
            "tool_choice",
        )
    param = "tool_choice.disable_parallel_tool_use"
    is_serial = choice.get("disable_parallel_tool_use")
    parallel = is_serial is None or not read_parallel(is_serial, param)
    required: Collection[str] = ()
    if kind == "any":
        if not names and not skipped:
            raise InvalidRequest("tool_choice must come with tools", "tool_choice")
        required = names
    elif kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str) or name not in (*names, *skipped):
            raise InvalidRequest(
                f"tool_choice.name must be the name of one of the tools, "
                f"got {describe_value(name)}",
                "tool_choice.name",
            )
        required = {name}.intersection(names)
    elif kind == "none":
        return NO_TOOLS
    several = is_serial is False and kind != "tool"
    return build_tools(
        definitions, required, parallel=parallel, several=several, strict_names=strict_names
    )
