"""The console's own routes in /openapi.json."""

from __future__ import annotations

from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import NOT_FOUND, Operation, query
from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    TEXT,
    Schema,
    list_of,
    object_of,
    or_null,
    ref,
)
from emulator.settings.emulator_settings import EmulatorSettings
from jobs import JobStatus

_TAG = "Console"
_OPERATIONS = {
    "/console/description": Operation(
        summary="Get the forms, their parameters and the engine",
        tag=_TAG,
        response="ConsoleDescription",
        query=(query("endpoint", "The handler's endpoint; the first if unset.", type="string"),),
    ),
    "/console/jobs": Operation(
        summary="List an endpoint's newest jobs with their times",
        tag=_TAG,
        response="ConsoleJobs",
        query=(
            query("endpoint", "The endpoint; the server's own if unset.", type="string"),
            query("status", "Only jobs in this state.", enum=[each.value for each in JobStatus]),
        ),
        errors=(400,),
    ),
    "/console/jobs/{job_id}/test": Operation(
        summary="Add a job to the handler's tests.json",
        tag=_TAG,
        response="SavedTest",
        body="NewTest",
        errors=(400, 404, 413, 415, 429),
        description="On a server without `--handler` the answer is 404. The file may have 1,000 "
        "tests and 16 MB; beyond that the answer is 413.",
    ),
    "/console/jobs/{job_id}": Operation(
        summary="Get a job of any endpoint, or follow it as server-sent events",
        tag=_TAG,
        response="ConsoleJob",
        errors=NOT_FOUND,
        can_stream=True,
    ),
}
_EXAMPLES = {"NewTest": Example({"name": "greets"})}

_MOMENT: Schema = or_null({"type": "integer", "description": "Unix time in milliseconds."})
_FAULT: dict[str, Schema] = {
    "name": TEXT,
    "group": {
        "enum": ["replacement", "response", "json", "stream"],
        "description": "What the fault applies to: it replaces the response, or changes any "
        "response, those of JSON, or streams.",
    },
    "example": TEXT | {"description": "The fault with a value, if it takes one."},
    "meaning": TEXT,
}
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
    "preview": TEXT | {"description": "The first words of the job's prompt."},
    "message": or_null(TEXT | {"description": "What a queued job waits for, after two seconds."}),
}
_FORM = object_of(
    {
        "path": TEXT | {"description": "The path to which the form is posted."},
        "parameters": {
            "type": "object",
            "description": "JSON Schemas by parameter. `default` is the value if unset, `note` a "
            "limit of the loaded engine.",
        },
    }
)


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas of the console's routes."""
    return {
        "JobSummary": object_of(_SUMMARY),
        "ConsoleJob": object_of(
            {**_SUMMARY, "input": {"description": "The input as it was sent."}},
            {
                "delayTime": COUNT,
                "executionTime": COUNT,
                "error": TEXT,
                "output": {"description": "The worker's result, or its last progress report."},
            },
        ),
        "NewTest": object_of({"name": TEXT | {"description": "The name of the new test."}}),
        "SavedTest": object_of({"file": TEXT | {"description": "The path of the tests file."}}),
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
                "endpoints": list_of(TEXT),
                "backend": TEXT,
                "stream_mode": {"enum": ["aggregate", "generator"]},
                "local_worker": FLAG,
                "trouble": or_null(
                    {**TEXT, "description": "Why the engine is being restarted or is dead."}
                ),
                "forms": object_of({"job": _FORM, "completion": _FORM, "chat": _FORM}),
                "validation": object_of({"default": FLAG, "options": {"type": "object"}}),
                "chat_template": object_of({"default": FLAG}),
                "engine": or_null(
                    {
                        "type": "object",
                        "description": "The engine's capabilities; null while it loads.",
                    }
                ),
                "warnings": list_of(TEXT),
                "examples": or_null(
                    {
                        "type": "object",
                        "description": "The `inputs` of a handler's test_input.json and of its "
                        "first 100 tests, and the `problems` with these files.",
                    }
                ),
                "faults": or_null(
                    list_of(object_of(_FAULT))
                    | {
                        "description": "The faults that a request can ask for with `x-fault`; "
                        "null without FAULTS_PER_REQUEST.",
                    }
                ),
            }
        ),
    }


DESCRIPTION = ApiDescription(
    tags={_TAG: "Used by the web console."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
)
