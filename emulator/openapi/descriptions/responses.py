"""OpenAI's Responses API in /openapi.json."""

from __future__ import annotations

from typing import Any

from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import (
    STREAMING,
    Operation,
    call_operation,
    limit_query,
    query,
)
from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    IMAGE_URL,
    TEXT,
    Schema,
    fields_of,
    list_of,
    model_names,
    object_of,
    or_null,
)
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.core.template_variables import REASONING_EFFORTS
from handler.apis.core.tools import MAX_TOOLS
from handler.apis.responses.input_items import MAX_ITEMS, ROLES
from handler.apis.responses.request import MAX_METADATA, SUMMARIES, ResponsesInput
from handler.apis.responses.response import STATUSES

_TAG = "Responses"


def _operation(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_TAG, response=response, errors=(400, 404), **rest)


_OPERATIONS = {
    "POST /v1/responses": call_operation(
        "Create a response",
        "Response",
        "NewResponse",
        tag=_TAG,
        can_stream=True,
        description=STREAMING,
    ),
    "/v1/responses/input_tokens": call_operation(
        "Count the tokens of a response's input", "InputTokens", "NewResponse", tag=_TAG
    ),
    "GET /v1/responses/{response_id}": _operation(
        "Get a response",
        "Response",
        can_stream=True,
        description="With `stream=true` the events of a background response, as they come.",
        query=(
            query("stream", "Whether to stream the events.", enum=["true", "false"]),
            query(
                "starting_after",
                "The `sequence_number` of the last event that the client has.",
                type="integer",
                minimum=0,
                maximum=999_999_999,
            ),
        ),
    ),
    "DELETE /v1/responses/{response_id}": _operation("Delete a response", "DeletedResponse"),
    "/v1/responses/{response_id}/input_items": _operation(
        "List the input items of a response",
        "InputItems",
        query=(
            limit_query(100, 20),
            query("after", "The id after which the page begins.", type="string"),
            query("order", "The order of the items.", enum=["asc", "desc"], default="desc"),
        ),
    ),
    "/v1/responses/{response_id}/cancel": _operation("Cancel a background response", "Response"),
}
_EXAMPLES = {
    "NewResponse": Example(
        {
            "input": "What is the capital of France?",
            "instructions": "You answer in one sentence.",
            "max_output_tokens": 32,
            "temperature": 0,
        },
        names_model=True,
        can_stream=True,
    ),
}

_TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_TEXT_PARTS: list[Schema] = [
    object_of({"type": {"enum": list(_TEXT_TYPES)}, "text": TEXT}),
    object_of({"type": {"const": "refusal"}, "refusal": TEXT}),
]
_IMAGE_PART = object_of(
    {"type": {"const": "input_image"}, "image_url": IMAGE_URL}, {"file_id": {"type": "null"}}
)
# A sentence takes the place of what the model cannot read.
_OTHER_TYPES: Schema = {"not": {"enum": [*_TEXT_TYPES, "refusal", "input_image"]}}
_OTHER_PART = object_of({"type": {"type": "string"} | _OTHER_TYPES})
_PARTS = [*_TEXT_PARTS, _OTHER_PART]
# Outside of the user's messages, an image that cannot be read is left out.
_ANY_IMAGE_PART = object_of({"type": {"const": "input_image"}})
_TEXTS: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_PARTS, _ANY_IMAGE_PART]})]}
_TEXTS_AND_IMAGES: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_PARTS, _IMAGE_PART]})]}
_READ_TYPES = (
    *("message", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output", "reasoning"),
)
_NOTHING: Schema = {"enum": [None, False, 0, {}]}
_ITEM: Schema = {
    "anyOf": [
        object_of(
            {"role": {"const": "user"}, "content": _TEXTS_AND_IMAGES},
            {"type": {"const": "message"}},
        ),
        object_of(
            {"role": {"enum": [role for role in ROLES if role != "user"]}, "content": _TEXTS},
            {"type": {"const": "message"}},
        ),
        object_of(
            {
                "type": {"const": "function_call"},
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
            }
        ),
        object_of(
            {
                "type": {"enum": ["function_call_output", "custom_tool_call_output"]},
                "call_id": TEXT,
                "output": _TEXTS,
            }
        ),
        object_of(
            {"type": {"const": "custom_tool_call"}, "call_id": TEXT, "name": TEXT, "input": TEXT}
        ),
        object_of(
            {"type": {"const": "reasoning"}},
            {"content": {"anyOf": [_TEXTS, _NOTHING]}, "summary": {"anyOf": [_TEXTS, _NOTHING]}},
        ),
        # Items of types that this server does not have: they are skipped.
        object_of({"type": {"type": "string", "not": {"enum": list(_READ_TYPES)}}}),
    ]
}
_FORMAT: Schema = {
    "anyOf": [
        object_of({"type": {"enum": ["text", "json_object"]}}),
        object_of({"type": {"const": "json_schema"}, "schema": {"type": "object"}}),
    ]
}


def _build_schemas(settings: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    metadata: Schema = {
        "type": "object",
        "additionalProperties": TEXT,
        "maxProperties": MAX_METADATA,
    }
    return {
        "NewResponse": object_of(
            {
                "input": {
                    "anyOf": [
                        TEXT,
                        list_of(_ITEM)
                        | {
                            "maxItems": MAX_ITEMS,
                            "description": "May be empty with `instructions` or "
                            "`previous_response_id`.",
                        },
                    ]
                }
            },
            {
                "model": {"enum": [*model_names(settings.served_models), None]},
                "instructions": or_null(TEXT),
                "previous_response_id": or_null(TEXT),
                **fields_of(ResponsesInput),
                "metadata": or_null(metadata),
                "reasoning": or_null(
                    object_of(
                        {},
                        {
                            "effort": or_null({"enum": list(REASONING_EFFORTS)}),
                            "summary": or_null({"enum": list(SUMMARIES)}),
                        },
                    )
                ),
                "text": or_null(object_of({}, {"format": or_null(_FORMAT)})),
                "tools": or_null(
                    list_of(object_of({"type": TEXT}))
                    | {
                        "maxItems": MAX_TOOLS,
                        "description": "Tools of the types function and custom; others are "
                        "skipped.",
                    }
                ),
            },
        ),
        "Response": object_of(
            {
                "id": TEXT,
                "object": {"const": "response"},
                "created_at": COUNT,
                "status": {"enum": list(STATUSES)},
                "model": TEXT,
                "output": list_of(object_of({"id": TEXT, "type": TEXT, "status": TEXT})),
                "usage": or_null(
                    object_of(
                        {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}
                    )
                ),
                "error": or_null(object_of({"code": TEXT, "message": TEXT})),
                "incomplete_details": or_null(object_of({"reason": TEXT})),
                "previous_response_id": or_null(TEXT),
                "metadata": metadata,
                "tools": list_of({"type": "object"}),
            }
        ),
        "InputTokens": object_of(
            {"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}
        ),
        "InputItems": object_of(
            {
                "object": {"const": "list"},
                "data": list_of(object_of({"id": TEXT})),
                "first_id": or_null(TEXT),
                "last_id": or_null(TEXT),
                "has_more": FLAG,
            }
        ),
        "DeletedResponse": object_of(
            {"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}
        ),
    }


DESCRIPTION = ApiDescription(
    tags={_TAG: "OpenAI's Responses API, which agents use."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={
        "response_id": "The response's id, as it was returned when it was created.",
    },
)
