"""Translate a body of the Messages API into a body of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.value_description import describe_value
from handler.apis.core.field_names import FieldNames
from handler.apis.messages.conversation import translate_conversation
from handler.apis.messages.tools import translate_tools
from handler.errors import InvalidRequest
from handler.input.sampling import MAX_INT32
from handler.input.unknown_keys import KnownKeys

# Fields with the same name and meaning in both APIs.
_SAME = ("max_tokens", "stream", "temperature", "top_k", "top_p")
_UNSUPPORTED = "is not supported and was ignored"
_KEYS = KnownKeys(
    "",
    {
        *_SAME,
        *("messages", "metadata", "model", "output_config", "service_tier", "stop_sequences"),
        *("system", "thinking", "tool_choice", "tools"),
        # The engine reuses the beginning of a prompt without being asked to.
        "cache_control",
    },
    notes=dict.fromkeys(
        ("container", "context_management", "inference_geo", "mcp_servers", "output_format"),
        _UNSUPPORTED,
    ),
)
# The client's names for the fields of chats whose names differ.
_NAMES: Mapping[str, str] = {
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
}
_THINKING_TYPES = ("enabled", "disabled", "adaptive")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A body of chat completions, how to name the client's fields in errors, and warnings."""

    body: Mapping[str, Any]
    field_names: FieldNames
    warnings: tuple[str, ...]


def translate_request(body: Mapping[str, Any]) -> TranslatedRequest:
    """Translate a body; `model` is left to the caller.

    Values that the reader of chats checks are not checked here.

    Raises:
        InvalidRequest: naming the field that cannot be translated.
    """
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    _check_temperature(body.get("temperature"))
    max_tokens = chat.get("max_tokens")
    if isinstance(max_tokens, int) and max_tokens > MAX_INT32:
        # Anything beyond the context means the same.
        chat["max_tokens"] = MAX_INT32
    if (stop := body.get("stop_sequences")) is not None:
        if not isinstance(stop, list):
            raise InvalidRequest(
                f"stop_sequences must be an array of strings, got {describe_value(stop)}",
                "stop_sequences",
            )
        chat["stop"] = stop
    messages = body.get("messages")
    warnings = [*_KEYS.warnings(body)]
    paths: list[str] = []
    chat["messages"] = messages
    if isinstance(messages, list) and messages:
        conversation = translate_conversation(body.get("system"), messages)
        chat["messages"], paths = conversation.messages, conversation.paths
        warnings += conversation.warnings
        if conversation.continues_last:
            chat["continue_final_message"] = True
    tools = translate_tools(body)
    chat |= tools.fields
    warnings += tools.warnings
    thinking = _translate_thinking(body.get("thinking"))
    output_config = _translate_output_config(body.get("output_config"))
    if not thinking.get("enable_thinking"):
        # In chat completions the effort turns thinking on.
        output_config.pop("reasoning_effort", None)
    chat |= thinking | output_config
    return TranslatedRequest(
        chat, FieldNames(_NAMES, paths, tools.paths, "input_schema"), tuple(warnings)
    )


def _check_temperature(temperature: Any) -> None:
    """Refuse what only OpenAI's API allows. Raises InvalidRequest."""
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if temperature is not None and not (is_number and 0 <= temperature <= 1):
        raise InvalidRequest(
            f"temperature must be a number from 0 to 1, got {describe_value(temperature)}",
            "temperature",
        )


def _translate_thinking(thinking: Any) -> dict[str, Any]:
    """Return the fields that turn the model's reasoning on or off, and limit it."""
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in _THINKING_TYPES:
        raise InvalidRequest(
            f"thinking must be an object with the type {', '.join(_THINKING_TYPES)}, "
            f"got {describe_value(thinking)}",
            "thinking",
        )
    is_on = kind != "disabled"
    # Templates of DeepSeek and Granite read `thinking`, most others `enable_thinking`.
    fields: dict[str, Any] = {
        "enable_thinking": is_on,
        "chat_template_kwargs": {"thinking": is_on},
    }
    budget = thinking.get("budget_tokens")
    if kind == "enabled" and budget is not None:
        fields["reasoning_budget"] = budget
    return fields


def _translate_output_config(config: Any) -> dict[str, Any]:
    """Return the fields for the effort and the form of the answer."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise InvalidRequest(
            f"output_config must be an object, got {describe_value(config)}", "output_config"
        )
    fields: dict[str, Any] = {}
    if (effort := config.get("effort")) is not None:
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"output_config.effort must be one of {', '.join(_EFFORTS)}, "
                f"got {describe_value(effort)}",
                "output_config.effort",
            )
        fields["reasoning_effort"] = "xhigh" if effort == "max" else effort
    if (form := config.get("format")) is not None:
        if not isinstance(form, Mapping) or form.get("type") != "json_schema":
            raise InvalidRequest(
                "output_config.format must be an object with the type json_schema and a schema, "
                f"got {describe_value(form)}",
                "output_config.format",
            )
        schema = {"name": "answer", "schema": form.get("schema")}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
