"""JSON Schemas of files and batches, by their names in /openapi.json."""

from __future__ import annotations

from emulator.batches.models import COMPLETION_WINDOW, INPUT_PURPOSE, OUTPUT_PURPOSE, BatchStatus
from emulator.batches.parameters import EXPIRY_ANCHOR, MAX_EXPIRY_S, MIN_EXPIRY_S, NewBatchInput
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
from handler.apis.calls import CALL_ROUTES

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


def batch_schemas() -> dict[str, Schema]:
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
