"""Read the body of a response: translate it to the body of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.json_depth import is_nested_too_deeply
from common.value_description import describe_value
from handler.apis.core.field_names import FieldNames
from handler.apis.responses.input_items import read_items, to_conversation
from handler.apis.responses.tools import read_tools
from handler.errors import InvalidRequest
from handler.input.request import read_flag

MAX_METADATA = 16
# Members of the body that have a translation, or none in a chat. All others are passed on, so that
# the parameters of the engines work here too.
_OWN_KEYS = frozenset(
    {
        *("background", "conversation", "created_at", "include", "input", "instructions"),
        *("max_output_tokens", "max_tool_calls", "metadata", "previous_items"),
        *("previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention"),
        *("reasoning", "safety_identifier", "service_tier", "store", "stream_options", "text"),
        *("tool_choice", "tools", "top_logprobs", "truncation"),
    }
)
# Names of a chat's parameters in error messages, and their names in a response.
_RESPONSE_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
}
# Refused, because the answer would be to another prompt than the client thinks.
_UNSUPPORTED = ("conversation", "prompt")
_IGNORED = ("max_tool_calls", "top_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A client's request for a response.

    `body` is what the client sent, and `chat_body` the same as a request for a chat completion,
    which the server then answers. `items` are the input items of this request only; `chat_body`
    also has those of the earlier responses that it continues.
    """

    body: Mapping[str, Any]
    chat_body: Mapping[str, Any]
    field_names: FieldNames
    items: Sequence[Mapping[str, Any]]
    custom_names: frozenset[str]
    previous_id: str | None
    background: bool
    is_stored: bool
    truncation: Literal["auto", "disabled"]
    warnings: tuple[str, ...]

    @property
    def streaming(self) -> bool:
        """Whether the response is streamed."""
        return self.chat_body["stream"] is True


def read_previous_id(body: Mapping[str, Any]) -> str | None:
    """Return the id of the response that this one continues. Raises InvalidRequest."""
    previous_id = body.get("previous_response_id")
    if previous_id is not None and not isinstance(previous_id, str):
        raise InvalidRequest(
            f"previous_response_id must be a string, got {describe_value(previous_id)}",
            "previous_response_id",
        )
    return previous_id


def read_created_at(body: Mapping[str, Any]) -> int | None:
    """Return when a background response was created; None if it is not. Raises InvalidRequest."""
    created = body.get("created_at")
    if created is not None and type(created) is not int:
        raise InvalidRequest(
            f"created_at must be a whole number of seconds, got {describe_value(created)}",
            "created_at",
        )
    return created


def read_request(
    body: Mapping[str, Any], earlier_items: Sequence[Mapping[str, Any]]
) -> ResponseRequest:
    """Translate a body; `earlier_items` are the input and output before `input`.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
    """
    for name in _UNSUPPORTED:
        if body.get(name) is not None:
            raise InvalidRequest(f"{name} is not supported", name)
    for name, value in body.items():
        # The answer repeats these values, and what is nested too deeply cannot be written again.
        if is_nested_too_deeply(value):
            raise InvalidRequest(f"{name} is nested too deeply", name)
    background = read_flag(body, "background", default=False)
    is_stored = read_flag(body, "store", default=True)
    if background and not is_stored:
        raise InvalidRequest("background: true needs store: true", "background")
    items = read_items(body.get("input"))
    conversation = to_conversation(items, earlier_items)
    instructions = body.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str):
            raise InvalidRequest(
                f"instructions must be a string, got {describe_value(instructions)}", "instructions"
            )
        conversation.messages.insert(0, {"role": "system", "content": instructions})
        conversation.paths.insert(0, "instructions")
    tools = read_tools(body)
    _check_metadata(body.get("metadata"))
    chat_body: dict[str, Any] = {
        name: value for name, value in body.items() if name not in _OWN_KEYS
    }
    chat_body |= {
        "messages": conversation.messages,
        "stream": read_flag(body, "stream", default=False),
        **_read_text_format(body.get("text")),
        **_read_reasoning(body.get("reasoning")),
    }
    if (limit := body.get("max_output_tokens")) is not None:
        chat_body["max_tokens"] = limit
    if tools.functions or tools.choice == "required":
        chat_body |= {"tools": tools.functions, "tool_choice": tools.choice}
    return ResponseRequest(
        body=body,
        chat_body=chat_body,
        field_names=FieldNames(_RESPONSE_NAMES, conversation.paths, tools.paths),
        items=items,
        custom_names=tools.custom_names,
        previous_id=read_previous_id(body),
        background=background,
        is_stored=is_stored,
        truncation=_read_truncation(body.get("truncation")),
        warnings=(*conversation.warnings, *tools.warnings, *_find_ignored(body)),
    )


def _read_truncation(truncation: Any) -> Literal["auto", "disabled"]:
    if truncation in (None, "disabled"):
        return "disabled"
    if truncation == "auto":
        return "auto"
    raise InvalidRequest(
        f'truncation must be "auto" or "disabled", got {describe_value(truncation)}', "truncation"
    )


def _find_ignored(body: Mapping[str, Any]) -> list[str]:
    return [f"{name} is not supported and was ignored" for name in _IGNORED if body.get(name)]


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


def _read_text_format(text: Any) -> dict[str, Any]:
    """Return the `response_format` of the chat. Raises InvalidRequest."""
    if text is None:
        return {}
    text_format = text.get("format") if isinstance(text, Mapping) else None
    if not isinstance(text, Mapping) or not isinstance(text_format, Mapping | None):
        raise InvalidRequest(
            f"text must be an object with a format, got {describe_value(text)}", "text"
        )
    if text_format is None or text_format.get("type") == "text":
        return {}
    if text_format.get("type") == "json_schema":
        # A chat completion has `name`, `schema` and `strict` in an object, `json_schema`.
        members = {name: value for name, value in text_format.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": members}}
    return {"response_format": dict(text_format)}


def _read_reasoning(reasoning: Any) -> dict[str, Any]:
    """Return the `reasoning_effort` of the chat. Raises InvalidRequest."""
    if reasoning is None:
        return {}
    if not isinstance(reasoning, Mapping):
        raise InvalidRequest(
            f"reasoning must be an object, got {describe_value(reasoning)}", "reasoning"
        )
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}
