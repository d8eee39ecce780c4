"""Translate the tools of a response to the functions of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest

MAX_TOOLS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTools:
    """The functions of a chat, and which of them are custom tools.

    A custom tool takes free text. The model gets it as a function with one argument, `input`.
    """

    functions: Sequence[Mapping[str, Any]] = ()
    paths: Sequence[str] = ()
    custom_names: frozenset[str] = frozenset()
    choice: Any = None
    warnings: tuple[str, ...] = ()


def read_tools(body: Mapping[str, Any]) -> ResponseTools:
    """Return the tools and the tool choice of a body. Raises InvalidRequest.

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
    functions, paths = [], []
    custom_names, skipped = set[str](), dict[str, None]()
    for index, tool in enumerate(raw):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str):
            raise InvalidRequest(
                f"tools[{index}] must be an object with a type, got {describe_value(tool)}", "tools"
            )
        if kind == "function":
            functions.append({"type": "function", "function": _keep_function_keys(tool)})
        elif kind == "custom":
            functions.append({"type": "function", "function": _custom_function(tool, index)})
            custom_names.add(str(tool.get("name")))
        else:
            skipped[kind[:64]] = None
            continue
        paths.append(f"tools[{index}]")
    warnings = tuple(f"tools of type {each} are not supported and were skipped" for each in skipped)
    return ResponseTools(
        functions=functions,
        paths=paths,
        custom_names=frozenset(custom_names),
        choice=_read_choice(body.get("tool_choice"), functions),
        warnings=warnings,
    )


def _keep_function_keys(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}


def _custom_function(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"tools[{index}].description must be a string, got {describe_value(description)}",
            "tools",
        )
    text = description or ""
    tool_format = tool.get("format")
    if isinstance(tool_format, Mapping) and isinstance(tool_format.get("definition"), str):
        # A grammar of the input: described to the model, because it cannot be enforced in a string.
        text += f"\nThe input has this {tool_format.get('syntax', '')} grammar:\n"
        text += tool_format["definition"]
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    return {"name": tool.get("name"), "description": text, "parameters": parameters}


def _read_choice(raw: Any, functions: Sequence[Mapping[str, Any]]) -> Any:
    """Return the `tool_choice` of the chat. Raises InvalidRequest."""
    if raw in (None, "auto", "none"):
        return raw
    names = [each["function"].get("name") for each in functions]
    if isinstance(raw, Mapping):
        kind, name = raw.get("type"), raw.get("name")
        if kind in ("function", "custom") and name in names:
            return {"type": "function", "function": {"name": name}}
        if kind == "allowed_tools" and raw.get("mode") in ("auto", "required"):
            return raw["mode"]
    elif raw == "required":
        return raw
    raise InvalidRequest(
        'tool_choice must be "none", "auto", "required" or name a tool of tools, '
        f"got {describe_value(raw)}",
        "tool_choice",
    )
