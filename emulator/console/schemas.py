"""JSON Schemas of what the console asks for, by their names in /openapi.json."""

from __future__ import annotations

from emulator.schema_parts import COUNT, FLAG, TEXT, Schema, list_of, object_of, or_null, ref
from jobs import JobStatus

_MOMENT: Schema = or_null({"type": "integer", "description": "milliseconds since 1970"})
_SUMMARY: dict[str, Schema] = {
    "id": TEXT,
    "endpoint": TEXT,
    "status": ref("JobStatus"),
    "createdAt": _MOMENT,
    "queuedAt": _MOMENT,
    "startedAt": _MOMENT,
    "firstTokenAt": _MOMENT,
    "endedAt": _MOMENT,
    "attempt": COUNT,
    "losses": COUNT,
    "retries": COUNT,
    "workerId": or_null(TEXT),
    "webhook": {"enum": ["none", "due", "done"]},
    "preview": TEXT | {"description": "the first words of what it asks"},
}
_FORM = object_of(
    {
        "path": TEXT | {"description": "where it is posted"},
        "parameters": {
            "type": "object",
            "description": "JSON Schemas; `default` is what is taken where one is unset, `note` "
            "what the engine makes of it",
        },
    }
)


def console_schemas() -> dict[str, Schema]:
    """Return them."""
    return {
        "JobSummary": object_of(_SUMMARY),
        "ConsoleJob": object_of(
            {**_SUMMARY, "input": {"description": "what it was sent with"}},
            {
                "delayTime": COUNT,
                "executionTime": COUNT,
                "error": TEXT,
                "output": {"description": "what the worker returned or has reported so far"},
            },
        ),
        "ConsoleJobs": object_of(
            {
                "endpoints": list_of(TEXT),
                "endpoint": TEXT,
                "counts": object_of({each.value: COUNT for each in JobStatus}),
                "workers": {"type": "object", "additionalProperties": COUNT},
                "jobs": list_of(ref("JobSummary")),
            }
        ),
        "ConsoleDescription": object_of(
            {
                "model": TEXT,
                "endpoint": TEXT,
                "backend": TEXT,
                "stream_mode": {"enum": ["aggregate", "generator"]},
                "local_worker": FLAG,
                "forms": object_of({"job": _FORM, "completion": _FORM, "chat": _FORM}),
                "validation": object_of({"default": FLAG, "options": {"type": "object"}}),
                "engine": or_null(
                    {"type": "object", "description": "what the engine can do, once it is loaded"}
                ),
                "warnings": list_of(TEXT),
            }
        ),
    }
