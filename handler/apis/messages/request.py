"""Read a body of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import SamplingParams
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parameters import Parameters
from handler.apis.core.parsed_call import ParsedCall, new_call_id
from handler.apis.core.template_variables import set_effort, set_thinking
from handler.apis.messages.conversation import read_conversation
from handler.apis.messages.tools import read_tools
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, read_schema
from handler.input.reasoning_budget import read_budget
from handler.input.sampling import (
    MAX_INT32,
    MAX_STOP_CHARS,
    MAX_STOPS,
    ParameterInput,
    StopString,
    find_unset,
    validate_model,
)
from handler.input.unknown_keys import KnownKeys
from handler.models.registry import ResolvedModel

_UNSUPPORTED = "is not supported and was ignored"
_THINKING_TYPES = ("enabled", "disabled", "adaptive")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
# The client's names of the fields that the engine names.
_FIELD_NAMES = {"prompt": "messages", "continue_final_message": "messages"}


class MessagesInput(ParameterInput):
    """The parameters of `/v1/messages`."""

    # Anything beyond the context means the same.
    max_tokens: int | None = Field(None, ge=1, description="a whole number from 1")
    temperature: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_k: int | None = Field(
        None, ge=-1, le=MAX_INT32, description="a whole number, -1 or 0 for all tokens"
    )
    stop_sequences: list[StopString] | None = Field(
        None,
        max_length=MAX_STOPS,
        description=f"an array of up to {MAX_STOPS} strings, each of 1 to {MAX_STOP_CHARS} "
        "characters",
    )
    stop_in_reasoning: bool | None = Field(None, description="true or false")
    stream: bool | None = Field(None, description="true or false")


_KEYS = KnownKeys(
    "",
    {
        *MessagesInput.model_fields,
        *("messages", "metadata", "model", "output_config", "output_format", "service_tier"),
        *("system", "thinking", "tool_choice", "tools"),
        # The engine reuses the beginning of a prompt without being asked to.
        "cache_control",
    },
    notes=dict.fromkeys(
        ("container", "context_management", "inference_geo", "mcp_servers"),
        _UNSUPPORTED,
    ),
)


def read_request(body: JsonObject, model: ResolvedModel, defaults: CallDefaults) -> ParsedCall:
    """Return what a body asks a model for.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    fields = validate_model(MessagesInput, body)
    messages, skipped_blocks = read_conversation(body.get("system"), body.get("messages"))
    tools, skipped_tools = read_tools(body)
    variables, budget = _read_thinking(body.get("thinking"))
    effort, constraint = _read_output_config(body.get("output_config"))
    if effort is not None and variables.get("thinking"):
        variables = set_effort(effort)
    last = messages[-1]
    is_text = last.role == "assistant" and bool(last.content) and not last.tool_calls
    continues_last = is_text and len(messages) > 1
    chat = tools.build_chat(messages, variables, continues_last=continues_last)
    # The older name of the form of the answer.
    constraint = constraint or _read_format(body.get("output_format"), "output_format")
    tools, tool_warnings = tools.combine(constraint)
    constraint = constraint if tools.constraint is None else tools.constraint
    limit = defaults.max_tokens if fields.max_tokens is None else fields.max_tokens
    sampling = SamplingParams(
        max_tokens=limit if limit is None else min(limit, MAX_INT32),
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=fields.top_k or -1,
        stop=tuple(fields.stop_sequences or ()),
        stop_in_reasoning=fields.stop_in_reasoning,
        lora=model.adapter,
        unset=find_unset(fields),
    )
    if constraint is not None:
        sampling = constraint.apply(sampling)
    return ParsedCall(
        id=new_call_id("msg_"),
        model=model.name,
        prompts=(chat,),
        parameters=Parameters(sampling=sampling, streaming=bool(fields.stream)),
        reply_format=tools.build_reply_format(defaults.tool_form),
        constraint=constraint,
        reasoning_budget=budget,
        options=defaults.options.defaults,
        warnings=(
            *_KEYS.warnings(body),
            *skipped_blocks,
            *skipped_tools,
            *tool_warnings,
            *defaults.options.warnings,
        ),
        field_names=_FIELD_NAMES,
    )


def _read_thinking(thinking: Any) -> tuple[JsonObject, int | None]:
    """Return the variables that turn the reasoning on or off, and the limit of its tokens."""
    if thinking is None:
        return {}, None
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in _THINKING_TYPES:
        raise InvalidRequest(
            f"thinking must be an object with the type {', '.join(_THINKING_TYPES)}, "
            f"got {describe_value(thinking)}",
            "thinking",
        )
    budget = None
    if kind == "enabled":
        budget = read_budget(thinking.get("budget_tokens"), "thinking.budget_tokens")
    return set_thinking(kind != "disabled"), budget


def _read_output_config(config: Any) -> tuple[str | None, Constraint | None]:
    """Return the effort, and the schema of the answer."""
    if config is None:
        return None, None
    if not isinstance(config, Mapping):
        raise InvalidRequest(
            f"output_config must be an object, got {describe_value(config)}", "output_config"
        )
    effort = config.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequest(
            f"output_config.effort must be one of {', '.join(_EFFORTS)}, "
            f"got {describe_value(effort)}",
            "output_config.effort",
        )
    constraint = _read_format(config.get("format"), "output_config.format")
    return "xhigh" if effort == "max" else effort, constraint


def _read_format(form: Any, path: str) -> Constraint | None:
    """Return the schema that the answer is held to; None for any text. Raises InvalidRequest."""
    if form is None:
        return None
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        raise InvalidRequest(
            f"{path} must be an object with the type json_schema and a schema, "
            f"got {describe_value(form)}",
            path,
        )
    return read_schema(form.get("schema"), f"{path}.schema", path)
