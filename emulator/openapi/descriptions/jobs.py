"""RunPod's job API in /openapi.json."""

from __future__ import annotations

from typing import Any

from emulator.http.error_format import ErrorFormat
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import (
    CREATION_ERRORS,
    ENDPOINT,
    NOT_FOUND,
    Operation,
    wait_query,
)
from emulator.openapi.schemas import (
    ANY,
    COUNT,
    FLAG,
    TEXT,
    Schema,
    counts_of,
    list_of,
    object_of,
    or_null,
    ref,
)
from emulator.settings.emulator_settings import EmulatorSettings
from jobs import JobStatus

_TAG = "Jobs"
# The tag of the same operations under paths that name the endpoint.
ENDPOINT_TAG = "Endpoints"
_WAIT = wait_query("How long to wait for the end of the job, in milliseconds.")


def _operation(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(
        summary=summary, tag=_TAG, endpoint_tag=ENDPOINT_TAG, response=response, **rest
    )


_OPERATIONS = {
    "/run": _operation(
        "Queue a job",
        "Accepted",
        body="NewJob",
        errors=CREATION_ERRORS,
        description="Returns the job's id as soon as the job is stored. Read the result with "
        "`/status/{job_id}`, or stream the output with `/stream/{job_id}`.",
    ),
    "/runsync": _operation(
        "Queue a job and wait for its result",
        "Job",
        body="NewJob",
        query=(_WAIT,),
        errors=(*CREATION_ERRORS, 404),
    ),
    "/status/{job_id}": _operation("Get a job's status and result", "Job", errors=NOT_FOUND),
    "/status-sync/{job_id}": _operation(
        "Wait for a job's result", "Job", query=(_WAIT,), errors=(400, 404)
    ),
    "/stream/{job_id}": _operation(
        "Stream a job's output",
        "Stream",
        description="As JSON: the output since the last call. With `Accept: text/event-stream`: "
        "the whole output as server-sent events, to the end of the job.",
        errors=(400, 404),
        can_stream=True,
    ),
    "/cancel/{job_id}": _operation("Cancel a job", "Accepted", errors=(404, 503)),
    "/retry/{job_id}": _operation("Retry a failed job", "Accepted", errors=(400, 404, 503)),
    "/purge-queue": _operation("Cancel all queued jobs", "Purged", errors=(503,)),
    "/reset": _operation(
        "Cancel and remove all jobs",
        "Purged",
        description="Empties the queue, cancels the running jobs and removes all results of the "
        "endpoint. Only this server has it, not RunPod.",
        errors=(503,),
    ),
    "/requests": _operation("List the newest jobs", "Jobs"),
    "/requests/{job_id}": _operation("Get a job with its input", "JobAndInput", errors=NOT_FOUND),
    f"{ENDPOINT}/health": _operation("Count the jobs and workers of an endpoint", "EndpointHealth"),
}
_EXAMPLES = {
    "NewJob": Example(
        {
            "input": {
                "prompt": "The capital of France is",
                "sampling_params": {"max_tokens": 16, "temperature": 0},
            }
        }
    ),
}

INPUT_FIELDS: dict[str, Schema] = {"input": ANY, "webhook": TEXT}
# No key is required here: which ones are needed depends on the worker.
_S3_KEYS = {
    "accessId": "The access key.",
    "accessSecret": "The secret of the access key.",
    "bucketName": "The bucket's name.",
    "endpointUrl": "The S3 server, such as https://s3.eu-central-1.amazonaws.com.",
    "objectPath": "The folder in the bucket.",
}
S3_CONFIG: Schema = {
    **object_of({}, {name: {"description": text} for name, text in _S3_KEYS.items()}),
    "description": "The bucket for the result. It is passed to the worker and never returned.",
}


def _build_schemas(settings: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    limits = settings.policy_limits()
    week_ms = 7 * 24 * 3600 * 1000
    milliseconds: dict[str, Schema] = {
        name: {"type": "integer", "minimum": minimum, "maximum": week_ms}
        for name, minimum in (
            ("executionTimeout", limits.min_execution_timeout_ms),
            ("ttl", limits.min_ttl_ms),
        )
    }
    status: Schema = {"type": "string", "enum": [each.value for each in JobStatus]}
    job_fields = {
        "delayTime": {**COUNT, "description": "Time in the queue, in milliseconds."},
        "executionTime": {**COUNT, "description": "Time on a worker, in milliseconds."},
        "workerId": TEXT,
        "error": TEXT,
        "output": {"description": "The worker's result, or its last progress report."},
        "message": TEXT
        | {
            "description": "What the job waits for, or where the output is if it was only streamed."
        },
    }
    return {
        "JobApiError": object_of(
            {"error": TEXT | {"description": "What is wrong, as a sentence."}},
            {"param": TEXT, "request_id": TEXT},
        ),
        "NewJob": object_of(
            {
                "input": {
                    "not": {"type": "null"},
                    "description": "The job's input; its fields are the worker's.",
                }
            },
            {
                "webhook": or_null({"type": "string", "pattern": "^https?://", "maxLength": 2000}),
                "policy": or_null(
                    object_of({}, {"lowPriority": FLAG, **_each_nullable(milliseconds)})
                ),
                "s3Config": or_null(S3_CONFIG),
            },
        ),
        "JobStatus": status,
        "Accepted": object_of(
            {"id": TEXT, "status": ref("JobStatus")}, {"warnings": list_of(TEXT)}
        ),
        "Job": object_of(
            {"id": TEXT, "status": ref("JobStatus")}, job_fields | {"warnings": list_of(TEXT)}
        ),
        "JobAndInput": object_of(
            {"id": TEXT, "status": ref("JobStatus")}, job_fields | INPUT_FIELDS
        ),
        "Jobs": object_of({"requests": list_of(ref("Job"))}),
        "Stream": object_of(
            {"status": ref("JobStatus"), "stream": list_of(object_of({"output": ANY}))},
            {"message": {**TEXT, "description": "why a job that has ended has no more output"}},
        ),
        "Purged": object_of({"removed": COUNT, "status": {"const": "completed"}}),
        "EndpointHealth": object_of(
            {
                "jobs": counts_of("completed", "failed", "inProgress", "inQueue", "retried"),
                "workers": counts_of(
                    "idle", "initializing", "ready", "running", "throttled", "unhealthy"
                ),
            },
            {
                "unhealthyWorkers": {
                    **list_of(object_of({"id": TEXT, "reason": TEXT})),
                    "description": "Workers that reported themselves unhealthy or could not start "
                    "in the last two minutes, with the last line that each printed.",
                }
            },
        ),
    }


def _each_nullable(schemas: dict[str, Schema]) -> dict[str, Schema]:
    return {name: or_null(schema) for name, schema in schemas.items()}


DESCRIPTION = ApiDescription(
    tags={_TAG: "RunPod's job API: queue a job, wait for it, stream its output, cancel it."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"job_id": "The job's id, as `/run` returned it."},
    error_schemas={ErrorFormat.RUNPOD: "JobApiError"},
)
