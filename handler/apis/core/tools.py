"""The functions that a model may or must call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from common.json_object import JsonObject
from common.json_size import exceeds
from common.value_description import describe_value
from engine import Chat, Message
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat, ToolForm
from handler.apis.core.schema_refs import move_refs
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, check_cost, check_schema

# Agents send the tools of all their servers, so these are more than OpenAI's 128 and 64.
MAX_TOOLS = 1_000
MAX_NAME_CHARS = 128
NAME_PATTERN = f"[A-Za-z0-9_-]{{1,{MAX_NAME_CHARS}}}"
# Limit for all functions together, including names and descriptions.
MAX_TOOLS_CHARS = 1_000_000
_NAME = re.compile(NAME_PATTERN)
# The most calls of one answer that must be a call: a small model would go on without end.
_MAX_CALLS = 8
_CALL_REF: JsonObject = {"$ref": "#/$defs/call"}
_SEVERAL_CALLS: JsonObject = {
    "type": "array",
    "items": _CALL_REF,
    "minItems": 1,
    "maxItems": _MAX_CALLS,
}


class Function(TypedDict):
    """A function that a model may call; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


class FunctionTool(TypedDict):
    """A function in the form that chat templates expect."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a call, in the form that the chat template receives.

    `constraint` is what the answer is held to. It has a schema if the answer must be a call, or
    either a call or JSON of the client's schema. It has the schemas of strict functions if the
    answer may be any text with calls in it. None holds nothing. `required` are the functions of
    which the answer must call one; there may be none.
    """

    definitions: tuple[FunctionTool, ...] = ()
    parallel: bool = True
    several: bool = False
    constraint: Constraint | None = None
    required: tuple[str, ...] = ()

    def combine(self, constraint: Constraint | None) -> tuple[Tools, tuple[str, ...]]:
        """Return the tools with the constraint of an answer that is no call, and warnings.

        Where the model must call a function, there is no other answer. Raises InvalidRequest.
        """
        if constraint is None or self._holds_answer or not self.definitions:
            return self, ()
        answer = constraint.json_schema
        if answer is None:
            tools = replace(self, constraint=None)
            if not constraint.bad_words:
                what = "tools cannot be called"
            elif self.constraint is not None:
                what = "strict of tools was ignored"
            else:
                return self, ()
            return tools, (f"{what}, because {constraint.param} holds the answer",)
        functions = [tool["function"] for tool in self.definitions]
        schema = _calls_schema(functions, several=self.several, answer=answer)
        check_cost(schema, "the parameters of tools", "tools")
        combined = Constraint(
            param=constraint.param, json_schema=schema, holds_calls=True, answer_schema=answer
        )
        return replace(self, constraint=combined), ()

    def build_chat(
        self, messages: Sequence[Message], variables: JsonObject, *, continues_last: bool
    ) -> Chat:
        """Return a chat with the functions; `variables` are those of its template."""
        return Chat(
            tuple(messages),
            variables,
            self.definitions,
            continues_last,
            required_calls=self.required,
            parallel_calls=self.parallel,
        )

    def build_reply_format(self, tool_form: ToolForm | None) -> ReplyFormat:
        """Return how to find calls of the functions in an output."""
        if not self.definitions and tool_form is None:
            return REASONING_ONLY
        return ReplyFormat(
            functions={_name(tool): tool["function"]["parameters"] for tool in self.definitions},
            parallel_calls=self.parallel,
            constrains_calls=self._holds_answer,
            tool_form=tool_form,
        )

    @property
    def _holds_answer(self) -> bool:
        return self.constraint is not None and self.constraint.json_schema is not None


NO_TOOLS = Tools()


def build_tools(
    definitions: Sequence[FunctionTool],
    required_names: Collection[str] = (),
    *,
    parallel: bool = True,
    several: bool = False,
    strict_names: Collection[str] = (),
) -> Tools:
    """Return the functions of a call, checked together.

    If there are `required_names`, the model must call one of those functions. `several` means that
    the client has asked for calls in parallel: only then may a required answer have more than one,
    because a small model would repeat calls. If the model need not call any function, the calls of
    `strict_names` still follow their schemas. Raises InvalidRequest.
    """
    if not definitions:
        return NO_TOOLS
    if len(definitions) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must be an array of up to {MAX_TOOLS} functions, got {len(definitions)}",
            "tools",
        )
    if exceeds(definitions, MAX_TOOLS_CHARS):
        raise InvalidRequest(
            f"tools must have at most {MAX_TOOLS_CHARS} characters together, and they have more",
            "tools",
        )
    if len({_name(tool) for tool in definitions}) < len(definitions):
        raise InvalidRequest("tools must have names of their own, and two are alike", "tools")
    constraint = None
    if required_names:
        required = [tool["function"] for tool in definitions if _name(tool) in required_names]
        schema = _calls_schema(required, several=several)
        # Checked together, because the engine builds one grammar from all of them.
        check_cost(schema, "the parameters of tools", "tools")
        constraint = Constraint(param="tools", json_schema=schema, holds_calls=True)
    elif not {_name(tool) for tool in definitions}.isdisjoint(strict_names):
        # A function that is not strict takes any arguments.
        calls = {
            _name(tool): tool["function"]["parameters"] if _name(tool) in strict_names else {}
            for tool in definitions
        }
        constraint = Constraint(param="tools", calls=calls)
    return Tools(
        definitions=tuple(definitions),
        parallel=parallel,
        several=several,
        constraint=constraint,
        required=tuple(required_names),
    )


def read_functions(tools: Any) -> Sequence[FunctionTool]:
    """Return the functions in an array of tools, as OpenAI writes them. Raises InvalidRequest."""
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must be an array of up to {MAX_TOOLS} functions, got {describe_value(tools)}",
            "tools",
        )
    return [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _read_tool(tool: Any, path: str) -> FunctionTool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function":
        raise InvalidRequest(
            f'{path} must be an object with type "function" and a function, '
            f"got {describe_value(tool)}",
            "tools",
        )
    name, description = function.get("name"), function.get("description")
    return read_function(name, description, function.get("parameters"), f"{path}.function")


def read_function(
    name: Any, description: Any, parameters: Any, path: str, schema_name: str = "parameters"
) -> FunctionTool:
    """Return a function with all its keys, in the form that chat templates expect.

    `path` is its place in the client's body, and `schema_name` the client's name for the schema of
    its parameters. Raises InvalidRequest.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}.name must be 1 to {MAX_NAME_CHARS} letters, digits, _ and -, "
            f"got {describe_value(name)}",
            "tools",
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"{path}.description must be a string, got {describe_value(description)}", "tools"
        )
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(
            f"{path}.{schema_name} must be a JSON Schema, got {describe_value(parameters)}",
            "tools",
        )
    check_schema(parameters, f"{path}.{schema_name}", "tools")
    function = Function(name=name, description=description or "", parameters=parameters)
    return FunctionTool(type="function", function=function)


def read_strict_names(functions: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the functions that are `strict`, from the client's objects by path.

    Raises InvalidRequest.
    """
    names = set[str]()
    for path, function in functions.items():
        strict = function.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise InvalidRequest(
                f"{path}.strict must be true or false, got {describe_value(strict)}", "tools"
            )
        if strict:
            names.add(function["name"])
    return frozenset(names)


def read_parallel(value: Any, param: str = "parallel_tool_calls") -> bool:
    """Return whether an answer may have several calls. Raises InvalidRequest."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{param} must be true or false, got {describe_value(value)}", param)
    return value is not False


def _calls_schema(
    functions: Sequence[Function], *, several: bool, answer: JsonObject | None = None
) -> JsonObject:
    """Return the schema of a call of one of the functions, of several calls, or of an answer."""
    if not several and answer is None:
        if len(functions) == 1:
            return _call_schema(functions[0], "#")
        return {
            "anyOf": [
                _call_schema(each, f"#/anyOf/{index}") for index, each in enumerate(functions)
            ]
        }
    path = "#/$defs/call/anyOf"
    calls = [_call_schema(each, f"{path}/{index}") for index, each in enumerate(functions)]
    definitions: dict[str, JsonObject] = {"call": {"anyOf": calls}}
    alternatives: list[JsonObject] = [_CALL_REF]
    if several:
        alternatives.append(_SEVERAL_CALLS)
    if answer is not None:
        definitions["answer"] = move_refs(answer, "#/$defs/answer")
        alternatives.insert(0, {"$ref": "#/$defs/answer"})
    return {"$defs": definitions, "anyOf": alternatives}


def _call_schema(function: Function, path: str) -> JsonObject:
    """Return the schema of a call of a function, which is at `path` of the whole schema."""
    arguments = move_refs(function["parameters"], f"{path}/properties/arguments")
    # A schema without a type allows an array or a text too.
    arguments.setdefault("type", "object")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _name(tool: FunctionTool) -> str:
    return tool["function"]["name"]
