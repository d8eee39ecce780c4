"""Read `tools` and `tool_choice`: the functions that a model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.json_size import exceeds
from common.value_description import describe_value
from handler.apis.openai.schema_refs import move_refs
from handler.errors import InvalidRequest
from handler.input.constraints import check_cost, check_schema
from handler.reply.reply_format import ReplyFormat

MAX_TOOLS = 128
# Limit for all functions together, including names and descriptions.
MAX_TOOLS_CHARS = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALLOWED_CHOICES = 'tool_choice must be "none", "auto", "required" or name a function of tools'


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a call, in the form that the chat template receives.

    The model must call one of the functions in `required_names`. If that is empty, the model may
    answer with text instead.
    """

    definitions: tuple[Mapping[str, Any], ...] = ()
    required_names: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def reply_format(self) -> ReplyFormat:
        """How to find calls of the functions in an output."""
        return ReplyFormat(
            functions={_name(tool): tool["function"]["parameters"] for tool in self.definitions},
            parallel_calls=self.parallel,
            must_call=bool(self.required_names),
        )

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of an answer that must be a call; None if it need not be one."""
        if not self.required_names:
            return None
        functions = [
            tool["function"] for tool in self.definitions if _name(tool) in self.required_names
        ]
        if len(functions) == 1:
            return _call_schema(functions[0], "#")
        return {
            "anyOf": [
                _call_schema(function, f"#/anyOf/{index}")
                for index, function in enumerate(functions)
            ]
        }


def read_tools(body: Mapping[str, Any]) -> Tools:
    """Return the functions of a chat. Raises InvalidRequest, naming the wrong parameter."""
    tools = body.get("tools")
    if tools is None:
        tools = []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must be an array of up to {MAX_TOOLS} functions, got {describe_value(tools)}",
            "tools",
        )
    if exceeds(tools, MAX_TOOLS_CHARS):
        raise InvalidRequest(
            f"tools must have at most {MAX_TOOLS_CHARS} characters together, and they have more",
            "tools",
        )
    definitions = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    names = [_name(tool) for tool in definitions]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools must have names of their own, and two are alike", "tools")
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequest(
            f"parallel_tool_calls must be true or false, got {describe_value(parallel)}",
            "parallel_tool_calls",
        )
    tool_choice = body.get("tool_choice")
    required_names = _read_required_names(tool_choice, names)
    if tool_choice == "none":
        return Tools()
    read = Tools(
        definitions=definitions, required_names=required_names, parallel=parallel is not False
    )
    if (schema := read.schema) is not None:
        # Checked together, because the engine builds one grammar from all of them.
        check_cost(schema, "the parameters of tools", "tools")
    return read


def _read_required_names(tool_choice: Any, names: list[str]) -> tuple[str, ...]:
    """Return the functions of which the model must call one. Raises InvalidRequest."""
    if tool_choice in (None, "none", "auto"):
        return ()
    if tool_choice == "required":
        if not names:
            raise InvalidRequest("tool_choice must come with tools", "tool_choice")
        return tuple(names)
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(
            f"{_ALLOWED_CHOICES}, got {describe_value(tool_choice)}", "tool_choice"
        )
    return (name,)


def _read_tool(tool: Any, path: str) -> Mapping[str, Any]:
    """Return a function with all its keys. Raises InvalidRequest; `path` is its place in a body."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function":
        raise InvalidRequest(
            f'{path} must be an object with type "function" and a function, '
            f"got {describe_value(tool)}",
            "tools",
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}.function.name must be 1 to 64 letters, digits, _ and -, "
            f"got {describe_value(name)}",
            "tools",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"{path}.function.description must be a string, got {describe_value(description)}",
            "tools",
        )
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(
            f"{path}.function.parameters must be a JSON Schema, got {describe_value(parameters)}",
            "tools",
        )
    check_schema(parameters, f"{path}.function.parameters", "tools")
    definition = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": definition}


def _call_schema(function: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the schema of a call of a function, which is at `path` of the whole schema."""
    arguments = move_refs(function["parameters"], f"{path}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _name(tool: Mapping[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name
