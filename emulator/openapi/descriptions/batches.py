"""OpenAI's files and batches in /openapi.json."""

from __future__ import annotations

from typing import Any

from emulator.batches.models import COMPLETION_WINDOW, INPUT_PURPOSE, OUTPUT_PURPOSE, BatchStatus
from emulator.batches.parameters import EXPIRY_ANCHOR, MAX_EXPIRY_S, MIN_EXPIRY_S, NewBatchInput
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import (
    BODY_ERRORS,
    BYTES,
    CREATION_ERRORS,
    FORM,
    NOT_FOUND,
    Operation,
    limit_query,
    query,
)
from emulator.openapi.schemas import (
    COUNT,
    TEXT,
    Schema,
    fields_of,
    list_of,
    object_of,
    or_null,
    ref,
)
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.calls import CALL_ROUTES

_TAG = "Batches"
_PAGE_QUERY = (
    query("after", "The id after which the page begins.", type="string"),
    query("order", "The order of the creation times.", enum=["asc", "desc"], default="desc"),
)


def _operation(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_TAG, response=response, **rest)


_OPERATIONS = {
    "POST /v1/files": _operation(
        "Upload a file of requests",
        "File",
        body="NewFile",
        content_types=(FORM,),
        errors=(*BODY_ERRORS, 503, 507),
    ),
    "GET /v1/files": _operation(
        "List files",
        "Files",
        query=(
            limit_query(10_000, 10_000),
            *_PAGE_QUERY,
            query("purpose", "Only files with this purpose.", type="string"),
        ),
        errors=(400,),
    ),
    "GET /v1/files/{file_id}": _operation("Get a file's description", "File", errors=NOT_FOUND),
    "DELETE /v1/files/{file_id}": _operation(
        "Delete a file", "DeletedFile", errors=(400, 404, 507)
    ),
    "/v1/files/{file_id}/content": _operation(
        "Download a file", "FileContent", response_type=BYTES, errors=NOT_FOUND
    ),
    "POST /v1/batches": _operation(
        "Create a batch", "Batch", body="NewBatch", errors=(*CREATION_ERRORS, 404, 507)
    ),
    "GET /v1/batches": _operation(
        "List batches", "Batches", query=(limit_query(100, 20), *_PAGE_QUERY), errors=(400,)
    ),
    "/v1/batches/{batch_id}": _operation("Get a batch", "Batch", errors=NOT_FOUND),
    "/v1/batches/{batch_id}/cancel": _operation("Cancel a batch", "Batch", errors=(400, 404, 507)),
}
_EXAMPLES = {
    "NewFile": Example(
        {
            "purpose": "batch",
            "file": '{"custom_id": "one", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": "The capital of France is", "max_tokens": 16}}\n',
        }
    ),
    "NewBatch": Example(
        {
            "input_file_id": "file-00000000000100c0ffee00c0ffee",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
    ),
}

_TIMESTAMP: Schema = {"type": "integer", "description": "Unix time in seconds."}
_SECONDS: Schema = {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S}
_TIMESTAMP_NAMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas of files and batches."""
    problem = object_of({"code": TEXT, "message": TEXT, "line": or_null(COUNT)})
    fields = fields_of(NewBatchInput)
    return {
        "NewFile": object_of(
            {
                "purpose": {"const": INPUT_PURPOSE},
                "file": TEXT
                | {"format": "binary", "description": "JSON Lines: one request per line."},
            },
            {
                "expires_after[anchor]": {"const": EXPIRY_ANCHOR},
                "expires_after[seconds]": _SECONDS,
            },
        ),
        "File": object_of(
            {
                "id": TEXT,
                "object": {"const": "file"},
                "bytes": COUNT,
                "created_at": _TIMESTAMP,
                "filename": TEXT,
                "purpose": {"enum": [INPUT_PURPOSE, OUTPUT_PURPOSE]},
                "status": {"const": "processed"},
                "expires_at": or_null(_TIMESTAMP),
            }
        ),
        "Files": _page("File"),
        "FileContent": TEXT | {"description": "The file's bytes."},
        "DeletedFile": object_of(
            {"id": TEXT, "object": {"const": "file"}, "deleted": {"const": True}}
        ),
        "NewBatch": object_of(
            {
                "input_file_id": fields["input_file_id"],
                "endpoint": {"enum": list(CALL_ROUTES)},
                "completion_window": fields["completion_window"],
            },
            {
                "metadata": fields["metadata"],
                "output_expires_after": or_null(
                    object_of({"anchor": {"const": EXPIRY_ANCHOR}, "seconds": _SECONDS})
                ),
            },
        ),
        "Batch": object_of(
            {
                "id": TEXT,
                "object": {"const": "batch"},
                "endpoint": {"enum": list(CALL_ROUTES)},
                "model": TEXT,
                "input_file_id": TEXT,
                "completion_window": {"const": COMPLETION_WINDOW},
                "status": {"enum": [each.value for each in BatchStatus]},
                "created_at": _TIMESTAMP,
                "expires_at": _TIMESTAMP,
                **dict.fromkeys(_TIMESTAMP_NAMES, or_null(_TIMESTAMP)),
                "output_file_id": or_null(TEXT),
                "error_file_id": or_null(TEXT),
                "errors": or_null(
                    object_of({"object": {"const": "list"}, "data": list_of(problem)})
                ),
                "request_counts": object_of({"total": COUNT, "completed": COUNT, "failed": COUNT}),
                "usage": or_null(
                    object_of(
                        {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}
                    )
                ),
                "metadata": or_null({"type": "object", "additionalProperties": TEXT}),
            }
        ),
        "Batches": _page("Batch"),
    }


def _page(name: str) -> Schema:
    return object_of(
        {
            "object": {"const": "list"},
            "data": list_of(ref(name)),
            "first_id": or_null(TEXT),
            "last_id": or_null(TEXT),
            "has_more": {"type": "boolean"},
        }
    )


DESCRIPTION = ApiDescription(
    tags={
        _TAG: "OpenAI's batch API: upload a file of requests, have it answered, download the "
        "answers."
    },
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"file_id": "The file's id.", "batch_id": "The batch's id."},
)
