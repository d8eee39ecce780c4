"""The routes of workers in /openapi.json."""

from __future__ import annotations

from typing import Any

from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.descriptions.jobs import INPUT_FIELDS, S3_CONFIG
from emulator.openapi.operation import JSON, Operation, query
from emulator.openapi.schemas import ANY, FLAG, TEXT, Schema, list_of, object_of, ref
from emulator.settings.emulator_settings import EmulatorSettings

_TAG = "Workers"
_BATCH = query(
    "batch_size",
    "The largest number of jobs to return.",
    type="integer",
    minimum=1,
    maximum=1_000,
    default=1,
)
_POSTED = (JSON, "application/x-www-form-urlencoded")


def _operation(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_TAG, response=response, **rest)


_OPERATIONS = {
    "/job-take/{worker}": _operation("Take a job", "TakenJob", errors=(429,), may_be_empty=True),
    "/job-take-batch/{worker}": _operation(
        "Take several jobs", "TakenJobs", query=(_BATCH,), errors=(400, 429), may_be_empty=True
    ),
    "/job-stop/{worker}": _operation("Get the jobs to stop", "JobsToStop", may_be_empty=True),
    "/job-stream/{worker}/{job_id}": _operation(
        "Send a part of a job's output",
        "Taken",
        body="Chunk",
        content_types=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/job-done/{worker}/{job_id}": _operation(
        "Send a job's result, or a progress report",
        "Taken",
        body="Result",
        content_types=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/ping/{worker}": _operation("Send a heartbeat", "Taken"),
}
_EXAMPLES = {
    "Chunk": Example({"output": {"text": " Paris"}}),
    "Result": Example({"output": {"text": " Paris."}}),
}


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    return {
        "TakenJob": object_of({"id": TEXT, "input": ANY}, INPUT_FIELDS | {"s3Config": S3_CONFIG}),
        "TakenJobs": list_of(ref("TakenJob")),
        "JobsToStop": object_of({"jobsToStop": list_of(TEXT)}),
        "Chunk": object_of({}, {"output": ANY}),
        "Result": object_of(
            {},
            {
                "output": ANY,
                "error": {"description": "If present and not empty, the job has failed."},
                "status": {
                    "description": "`IN_PROGRESS` for a progress report instead of the result."
                },
                "stopPod": {"description": "`true` if the worker asks to be replaced."},
            },
        ),
        "Taken": object_of({"ok": {"const": True}}, {"ignored": FLAG}),
    }


DESCRIPTION = ApiDescription(
    tags={
        _TAG: "Called by workers of RunPod's SDK. Needed only for a worker that does not use the "
        "SDK."
    },
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"worker": "The worker's id."},
)
