"""`tools` and `tool_choice`: the functions a model may call, or must (R39)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from handler.errors import InvalidRequest
from handler.json_size import exceeds
from handler.openai.structured import check_cost, check_schema
from handler.sampling import describe_value

MAX_TOOLS = 128
# Of all functions together, names and descriptions included.
MAX_TOOLS_CHARS = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICES = 'tool_choice must be "none", "auto", "required" or name a function of tools'


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a call, as the template is to be told of them, and whether one is a must.

    `must` are the names of which one has to be called, none where the model may do as it likes.
    """

    definitions: tuple[Mapping[str, Any], ...] = ()
    required_names: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """What an answer must fit so that it is a call; None where it need not be one."""
        if not self.required_names:
            return None
        calls = [
            _call_schema(tool["function"])
            for tool in self.definitions
            if _name(tool) in self.required_names
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}


def read_tools(body: Mapping[str, Any]) -> Tools:
    """Return the functions a chat may use. Raises InvalidRequest, naming what is wrong."""
    given = body.get("tools")
    if given is None:
        given = []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must be an array of up to {MAX_TOOLS} functions, got {describe_value(given)}",
            "tools",
        )
    if exceeds(given, MAX_TOOLS_CHARS):
        raise InvalidRequest(
            f"tools must have at most {MAX_TOOLS_CHARS} characters together, and they have more",
            "tools",
        )
    definitions = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    names = [_name(tool) for tool in definitions]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools must have names of their own, and two are alike", "tools")
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequest(
            f"parallel_tool_calls must be true or false, got {describe_value(parallel)}",
            "parallel_tool_calls",
        )
    choice, named = _choice(body.get("tool_choice"), names)
    if choice == "none":
        return Tools()
    required_names = (named,) if named is not None else tuple(names) if choice == "required" else ()
    tools = Tools(
        definitions=definitions, required_names=required_names, parallel=parallel is not False
    )
    if (schema := tools.schema) is not None:
        # Those that answers are held to, together: the engine makes one grammar of them.
        check_cost(schema, "the parameters of tools", "tools")
    return tools


def _choice(given: Any, names: list[str]) -> tuple[Literal["none", "auto", "required"], str | None]:
    if given is None:
        return "auto", None
    if given in ("none", "auto", "required"):
        if given == "required" and not names:
            raise InvalidRequest("tool_choice must come with tools", "tool_choice")
        choice: Literal["none", "auto", "required"] = given
        return choice, None
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"{_CHOICES}, got {describe_value(given)}", "tool_choice")
    return "required", name


def _tool(given: Any, path: str) -> Mapping[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type") != "function":
        raise InvalidRequest(
            f'{path} must be an object with type "function" and a function, got {describe_value(given)}',
            "tools",
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}.function.name must be 1 to 64 letters, digits, _ and -, got {describe_value(name)}",
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
    definitions = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": definitions}


def _call_schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _name(tool: Mapping[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name
