"""Read the body of a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from common.json_depth import is_nested_too_deeply
from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Message
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parameters import Parameters
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.core.template_variables import read_template_variables
from handler.apis.responses.input_items import read_conversation, read_items
from handler.apis.responses.tools import read_tools
from handler.errors import InvalidRequest
from handler.input.constraints import (
    CONSTRAINT_KEYS,
    Constraint,
    find_constraint_warnings,
    read_constraint,
    read_response_format,
    read_schema,
)
from handler.input.messages import check_continued
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.reasoning_budget import BUDGET_KEYS, read_reasoning_budget
from handler.input.request import read_flag
from handler.input.sampling import (
    MAX_INT32,
    SamplingDefaults,
    SamplingInput,
    build_sampling,
    check_bias_count,
    validate_model,
)
from handler.input.text import check_text
from handler.input.unknown_keys import KnownKeys
from handler.models.registry import ResolvedModel

MAX_METADATA = 16
# Refused, because the answer would be to another prompt than the client thinks.
_UNSUPPORTED = ("conversation", "prompt")
SUMMARIES = ("auto", "concise", "detailed")
# The client's names of the fields that the engine names.
_FIELD_NAMES = {"prompt": "input", "messages": "input"}


class ResponsesInput(SamplingInput):
    """The parameters of `/v1/responses`: those of a chat too, so that engines' own work here."""

    max_output_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description=f"a whole number from 1 to {MAX_INT32}"
    )
    background: bool | None = Field(None, description="true or false")
    store: bool | None = Field(None, description="true or false")

    @property
    def token_limit(self) -> int | None:
        """The maximum number of tokens of an answer; None for a body without one."""
        limit = self.max_output_tokens
        return super().token_limit if limit is None else limit


_KEYS = KnownKeys(
    "",
    {
        *ResponsesInput.model_fields,
        *LABELS,
        *CONSTRAINT_KEYS,
        *BUDGET_KEYS,
        *("chat_template_kwargs", "continue_final_message", "conversation", "created_at"),
        *("enable_thinking", "enable_validation", "include", "input", "instructions"),
        *("metadata", "model", "parallel_tool_calls", "previous_items"),
        *("previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention"),
        *("reasoning", "reasoning_effort", "safety_identifier", "service_tier"),
        *("stream_options", "text", "tool_choice", "tools", "truncation"),
        "validation",
    },
    ignored=IGNORED,
    notes={
        **dict.fromkeys((*IGNORED, "max_tool_calls"), "is not supported and was ignored"),
        "extra_body": "was ignored: put its members into the body itself",
        "messages": "was ignored: put them into input",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A client's request for a response.

    `body` is what the client sent, and `call` what it asks the model for. `items` are the input
    items of this request only; `call` also has those of the earlier responses that it continues.
    `has_summary` means that the client reads the reasoning as a summary.
    """

    body: JsonObject
    call: ParsedCall
    items: Sequence[JsonObject]
    custom_names: frozenset[str]
    previous_id: str | None
    background: bool
    is_stored: bool
    truncation: Literal["auto", "disabled"]
    has_summary: bool = False


def read_previous_id(body: JsonObject) -> str | None:
    """Return the id of the response that this one continues. Raises InvalidRequest."""
    previous_id = body.get("previous_response_id")
    if previous_id is not None and not isinstance(previous_id, str):
        raise InvalidRequest(
            f"previous_response_id must be a string, got {describe_value(previous_id)}",
            "previous_response_id",
        )
    return previous_id


def read_created_at(body: JsonObject) -> int | None:
    """Return when a background response was created; None if it is not. Raises InvalidRequest."""
    created = body.get("created_at")
    if created is not None and type(created) is not int:
        raise InvalidRequest(
            f"created_at must be a whole number of seconds, got {describe_value(created)}",
            "created_at",
        )
    return created


def read_request(
    body: JsonObject,
    earlier_items: Sequence[JsonObject],
    response_id: str,
    model: ResolvedModel,
    defaults: CallDefaults,
) -> ResponseRequest:
    """Read a body; `earlier_items` are the input and output before `input`.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
    """
    for name in _UNSUPPORTED:
        if body.get(name) is not None:
            raise InvalidRequest(f"{name} is not supported", name)
    for name, value in body.items():
        # The response repeats these values, and JSON that is nested too deeply cannot be encoded.
        if is_nested_too_deeply(value):
            raise InvalidRequest(f"{name} is nested too deeply", name)
    check_bias_count(body)
    fields = validate_model(ResponsesInput, body)
    background, is_stored = bool(fields.background), fields.store is not False
    if background and not is_stored:
        raise InvalidRequest("background: true needs store: true", "background")
    items = read_items(body.get("input"))
    messages, skipped_items = read_conversation(items, earlier_items)
    continues_last = read_flag(body, "continue_final_message", default=False)
    if continues_last:
        check_continued(messages)
    read = read_tools(body)
    tools = read.tools
    _check_metadata(body.get("metadata"))
    messages = (*_read_instructions(body.get("instructions")), *messages)
    if not messages:
        raise InvalidRequest("input must have at least one message", "input")
    variables = _read_template_variables(body)
    chat = tools.build_chat(messages, variables, continues_last=continues_last)
    constraint = _read_constraint(body)
    tools, tool_warnings = tools.combine(constraint)
    constraint = constraint if tools.constraint is None else tools.constraint
    sampling_defaults = SamplingDefaults(max_tokens=defaults.max_tokens)
    sampling, ignored = build_sampling(fields, body, sampling_defaults)
    sampling = replace(sampling, lora=model.adapter)
    if constraint is not None:
        sampling = constraint.apply(sampling)
    options, option_warnings = defaults.options.read(body.get("validation"))
    call = ParsedCall(
        id=response_id,
        model=model.name,
        prompts=(chat,),
        parameters=Parameters(sampling=sampling, streaming=bool(fields.stream)),
        reply_format=tools.build_reply_format(defaults.tool_form),
        constraint=constraint,
        reasoning_budget=read_reasoning_budget(body),
        validates=read_flag(body, "enable_validation", default=False),
        options=options,
        warnings=(
            *skipped_items,
            *read.warnings,
            *tool_warnings,
            *_KEYS.warnings(body),
            *ignored,
            *find_constraint_warnings(body),
            *option_warnings,
        ),
        field_names=_FIELD_NAMES,
    )
    return ResponseRequest(
        body=body,
        call=call,
        items=items,
        custom_names=read.custom_names,
        previous_id=read_previous_id(body),
        background=background,
        is_stored=is_stored,
        truncation=_read_truncation(body.get("truncation")),
        has_summary=_read_summary(body.get("reasoning")),
    )


def _read_instructions(instructions: Any) -> tuple[Message, ...]:
    """Return the message that comes before all others. Raises InvalidRequest."""
    if instructions is None:
        return ()
    if not isinstance(instructions, str):
        raise InvalidRequest(
            f"instructions must be a string, got {describe_value(instructions)}", "instructions"
        )
    check_text(instructions, "instructions")
    return (Message("system", instructions),)


def _read_template_variables(body: JsonObject) -> JsonObject:
    """Return the variables of the chat template, which the effort sets too."""
    reasoning = body.get("reasoning")
    if reasoning is None:
        reasoning = {}
    if not isinstance(reasoning, Mapping):
        raise InvalidRequest(
            f"reasoning must be an object, got {describe_value(reasoning)}", "reasoning"
        )
    if (effort := reasoning.get("effort")) is not None:
        return read_template_variables(body, effort, "reasoning.effort")
    return read_template_variables(body, body.get("reasoning_effort"))


def _read_summary(reasoning: Any) -> bool:
    """Return whether the client reads the reasoning as a summary. Raises InvalidRequest."""
    summary = reasoning.get("summary") if isinstance(reasoning, Mapping) else None
    if summary not in (None, *SUMMARIES):
        raise InvalidRequest(
            f"reasoning.summary must be one of {', '.join(SUMMARIES)}, "
            f"got {describe_value(summary)}",
            "reasoning.summary",
        )
    return summary is not None


def _read_constraint(body: JsonObject) -> Constraint | None:
    """Return what `text.format`, or an engine's own parameter, holds the text to."""
    text, constraint = body.get("text"), read_constraint(body)
    text_format = text.get("format") if isinstance(text, Mapping) else None
    if not isinstance(text, Mapping | None) or not isinstance(text_format, Mapping | None):
        raise InvalidRequest(
            f"text must be an object with a format, got {describe_value(text)}", "text"
        )
    if text_format is None:
        return constraint
    param = "text.format"
    if text_format.get("type") == "json_schema":
        # In a chat completion the name and the schema are in an object, `json_schema`.
        from_text: Constraint | None = read_schema(
            text_format.get("schema"), f"{param}.schema", param
        )
    else:
        from_text = read_response_format(text_format, param)
    if from_text is None:
        return constraint
    if constraint is not None:
        raise InvalidRequest(f"{constraint.param} must not come with {param}", constraint.param)
    return from_text


def _read_truncation(truncation: Any) -> Literal["auto", "disabled"]:
    if truncation in (None, "disabled"):
        return "disabled"
    if truncation == "auto":
        return "auto"
    raise InvalidRequest(
        f'truncation must be "auto" or "disabled", got {describe_value(truncation)}', "truncation"
    )


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if (
        not isinstance(metadata, Mapping)
        or len(metadata) > MAX_METADATA
        or not all(isinstance(value, str) for value in metadata.values())
    ):
        raise InvalidRequest(
            f"metadata must be an object of up to {MAX_METADATA} strings, "
            f"got {describe_value(metadata)}",
            "metadata",
        )
