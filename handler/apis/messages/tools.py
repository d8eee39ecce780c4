"""Translate `tools` and `tool_choice` into those of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest

_CHOICES = ("auto", "any", "tool", "none")


@dataclass(slots=True)
class TranslatedTools:
    """Fields of a body of chat completions, and the client's path of each of its tools."""

    fields: dict[str, Any] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def translate_tools(body: Mapping[str, Any]) -> TranslatedTools:
    """Return the tools of a body and whether the model must call one of them.

    Tools with a type, such as `web_search_20250305`, have no schema and run at Anthropic or in the
    client: they are skipped with a warning.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    translated = TranslatedTools()
    raw, skipped = body.get("tools"), set[str]()
    if isinstance(raw, list):
        tools: list[dict[str, Any]] = []
        for index, tool in enumerate(raw):
            path = f"tools[{index}]"
            if not isinstance(tool, Mapping):
                raise InvalidRequest(
                    f"{path} must be an object with name and input_schema, "
                    f"got {describe_value(tool)}",
                    path,
                )
            kind = tool.get("type")
            if kind is None or kind == "custom":
                tools.append(_translate_tool(tool))
                translated.paths.append(path)
                continue
            translated.warnings.append(
                f"{path} was skipped: tools of type {describe_value(kind)} are not supported"
            )
            if isinstance(name := tool.get("name"), str):
                skipped.add(name)
        translated.fields["tools"] = tools
    elif raw is not None:
        raise InvalidRequest(f"tools must be an array, got {describe_value(raw)}", "tools")
    _translate_choice(body.get("tool_choice"), translated, skipped)
    return translated


def _translate_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _translate_choice(choice: Any, translated: TranslatedTools, skipped: set[str]) -> None:
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in _CHOICES:
        raise InvalidRequest(
            f"tool_choice must be an object with the type {', '.join(_CHOICES)}, "
            f"got {describe_value(choice)}",
            "tool_choice",
        )
    fields = translated.fields
    is_serial = choice.get("disable_parallel_tool_use")
    if is_serial is not None:
        # The reader of chats refuses other values.
        fields["parallel_tool_calls"] = not is_serial if isinstance(is_serial, bool) else is_serial
    if kind == "any" and not (skipped and not translated.paths):
        fields["tool_choice"] = "required"
    elif kind == "none":
        fields["tool_choice"] = "none"
    elif kind == "tool":
        name = choice.get("name")
        names = [tool["function"]["name"] for tool in fields.get("tools") or ()]
        if not isinstance(name, str) or name not in (*names, *skipped):
            raise InvalidRequest(
                f"tool_choice.name must be the name of one of the tools, "
                f"got {describe_value(name)}",
                "tool_choice.name",
            )
        if name in names:
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
