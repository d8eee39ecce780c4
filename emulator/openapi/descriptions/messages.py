"""Anthropic's Messages API in /openapi.json."""

from __future__ import annotations

from emulator.http.error_format import ErrorFormat
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import STREAMING, call_operation
from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    IMAGE_URL,
    TEXT,
    TEXT_PART,
    Schema,
    fields_of,
    list_of,
    object_of,
    or_null,
)
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.core.tools import MAX_TOOLS, NAME_PATTERN
from handler.apis.messages.request import MessagesInput

_TAG = "Messages"
_OPERATIONS = {
    "/v1/messages": call_operation(
        "Create a message",
        "Message",
        "NewMessage",
        tag=_TAG,
        can_stream=True,
        description=STREAMING,
    ),
    "/v1/messages/count_tokens": call_operation(
        "Count the tokens of a message's prompt", "MessageTokens", "MessagePrompt", tag=_TAG
    ),
}
_EXAMPLES = {
    "NewMessage": Example(
        {
            "max_tokens": 32,
            "temperature": 0,
            "system": "You answer in one sentence.",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        },
        names_model=True,
        can_stream=True,
    ),
    "MessagePrompt": Example(
        {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
        names_model=True,
    ),
}

_IMAGE_BLOCK = object_of(
    {
        "type": {"const": "image"},
        "source": {
            "anyOf": [
                object_of({"type": {"const": "base64"}, "media_type": TEXT, "data": TEXT}),
                object_of({"type": {"const": "url"}, "url": IMAGE_URL}),
            ]
        },
    }
)
_CALL = object_of(
    {"type": {"const": "tool_use"}, "id": TEXT, "name": TEXT, "input": {"type": "object"}}
)
_TEXTS: Schema = {"anyOf": [TEXT, list_of(TEXT_PART)]}
_DOCUMENT_SOURCE: Schema = {
    "anyOf": [
        object_of({"type": {"const": "text"}, "data": TEXT}),
        object_of({"type": {"const": "content"}, "content": _TEXTS}),
        {"not": {"properties": {"type": {"enum": ["text", "content"]}}, "required": ["type"]}},
    ]
}
_READ_TYPES = (
    *("document", "image", "search_result", "text", "thinking", "tool_reference"),
    *("tool_result", "tool_use"),
)
_CONTEXT_BLOCKS: list[Schema] = [
    TEXT_PART,
    object_of({"type": {"const": "document"}}, {"source": _DOCUMENT_SOURCE}),
    object_of({"type": {"const": "search_result"}, "content": _TEXTS}),
    object_of({"type": {"const": "tool_reference"}, "tool_name": TEXT}),
    # A sentence takes the place of what the model cannot read.
    object_of({"type": {"type": "string", "not": {"enum": list(_READ_TYPES)}}}),
]
# An image of a tool that cannot be read is left out.
_RESULT_BLOCKS = list_of({"anyOf": [*_CONTEXT_BLOCKS, object_of({"type": {"const": "image"}})]})
_RESULT = object_of(
    {"type": {"const": "tool_result"}, "tool_use_id": TEXT},
    {"content": {"anyOf": [TEXT, _RESULT_BLOCKS, {"type": "null"}]}, "is_error": or_null(FLAG)},
)
_THINKING_BLOCK = object_of(
    {"type": {"enum": ["thinking", "redacted_thinking"]}}, {"thinking": TEXT}
)
_USER_BLOCKS = list_of({"anyOf": [*_CONTEXT_BLOCKS, _IMAGE_BLOCK, _RESULT]})
_ANSWER_BLOCKS = [TEXT_PART, _CALL, _THINKING_BLOCK]
_ASSISTANT_BLOCKS = list_of({"anyOf": [*_ANSWER_BLOCKS, *_CONTEXT_BLOCKS, _IMAGE_BLOCK]})
_MESSAGE: Schema = {
    "anyOf": [
        object_of({"role": {"const": "user"}, "content": {"anyOf": [TEXT, _USER_BLOCKS]}}),
        object_of(
            {"role": {"const": "assistant"}, "content": {"anyOf": [TEXT, _ASSISTANT_BLOCKS]}}
        ),
        object_of({"role": {"const": "system"}, "content": _TEXTS}),
    ]
}
_NAME: Schema = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
_TOOL = object_of(
    {"name": _NAME},
    {
        "type": {"enum": ["custom", None]},
        "description": or_null(TEXT),
        "input_schema": or_null({"type": "object", "description": "A JSON Schema."}),
    },
)
_SKIPPED_TOOL = object_of({"type": {"not": {"enum": ["custom", None]}}})
_PROMPT: dict[str, Schema] = {
    "model": or_null(TEXT),
    "system": or_null(_TEXTS),
    "tools": or_null(
        list_of({"anyOf": [_TOOL, _SKIPPED_TOOL]})
        | {
            "maxItems": MAX_TOOLS,
            "description": "Tools with different names; Anthropic's own are skipped.",
        }
    ),
    "tool_choice": or_null(
        object_of(
            {"type": {"enum": ["auto", "any", "tool", "none"]}},
            {"name": TEXT, "disable_parallel_tool_use": or_null(FLAG)},
        )
    )
    | {"description": "`any` and `tool` need `tools`."},
    "thinking": or_null(
        object_of(
            {"type": {"enum": ["enabled", "disabled", "adaptive"]}},
            {"budget_tokens": or_null(COUNT | {"maximum": 2**31 - 1})},
        )
    ),
}
_PARAMETERS: dict[str, Schema] = {
    **fields_of(MessagesInput),
    "metadata": {"description": "Has no effect."},
}


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    messages = {"messages": list_of(_MESSAGE) | {"minItems": 1}}
    usage = object_of(
        {
            "input_tokens": COUNT,
            "cache_creation_input_tokens": COUNT,
            "cache_read_input_tokens": COUNT,
            "output_tokens": COUNT,
        }
    )
    return {
        "NewMessage": object_of(messages, _PROMPT | _PARAMETERS),
        "Message": object_of(
            {
                "id": TEXT,
                "type": {"const": "message"},
                "role": {"const": "assistant"},
                "model": TEXT,
                "content": list_of({"anyOf": _ANSWER_BLOCKS}),
                "stop_reason": TEXT,
                "stop_sequence": or_null(TEXT),
                "usage": usage,
            }
        ),
        "MessagePrompt": object_of(messages, _PROMPT),
        "MessageTokens": object_of({"input_tokens": COUNT}),
        "MessagesError": object_of(
            {
                "type": {"const": "error"},
                "error": object_of({"type": TEXT, "message": TEXT}),
            },
            {"request_id": TEXT},
        ),
    }


DESCRIPTION = ApiDescription(
    tags={
        _TAG: "Anthropic's Messages API. Its clients, such as Claude Code, work with the server's "
        "address as base URL."
    },
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    error_schemas={ErrorFormat.MESSAGES: "MessagesError"},
)
