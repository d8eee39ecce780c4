"""JSON Schemas of the Responses API, by their names in /openapi.json."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    IMAGE_URL,
    TEXT,
    Schema,
    fields_of,
    list_of,
    object_of,
    or_null,
)
from handler.apis.core.template_variables import REASONING_EFFORTS
from handler.apis.core.tools import MAX_TOOLS
from handler.apis.responses.input_items import MAX_ITEMS, ROLES
from handler.apis.responses.request import MAX_METADATA, ResponsesInput
from handler.apis.responses.response import STATUSES

_TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_TEXT_PARTS: list[Schema] = [
    object_of({"type": {"enum": list(_TEXT_TYPES)}, "text": TEXT}),
    object_of({"type": {"const": "refusal"}, "refusal": TEXT}),
]
_IMAGE_PART = object_of(
    {"type": {"const": "input_image"}, "image_url": IMAGE_URL}, {"file_id": {"type": "null"}}
)
_TEXTS: Schema = {"anyOf": [TEXT, list_of({"anyOf": _TEXT_PARTS})]}
_TEXTS_AND_IMAGES: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_TEXT_PARTS, _IMAGE_PART]})]}
_READ_TYPES = (
    *("message", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output"),
)
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
        # Reasoning, and items of types that this server does not have: they are skipped.
        object_of({"type": {"type": "string", "not": {"enum": list(_READ_TYPES)}}}),
    ]
}
_FORMAT: Schema = {
    "anyOf": [
        object_of({"type": {"enum": ["text", "json_object"]}}),
        object_of({"type": {"const": "json_schema"}, "schema": {"type": "object"}}),
    ]
}


def response_schemas(models: Sequence[str]) -> dict[str, Schema]:
    """Return the schemas; `models` are all served names."""
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
                "model": {"enum": [*models, None]},
                "instructions": or_null(TEXT),
                "previous_response_id": or_null(TEXT),
                **fields_of(ResponsesInput),
                "metadata": or_null(metadata),
                "reasoning": or_null(
                    object_of({}, {"effort": or_null({"enum": list(REASONING_EFFORTS)})})
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
