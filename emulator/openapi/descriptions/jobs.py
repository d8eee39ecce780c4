"""JSON Schemas of the bodies of jobs, workers and the server, by their names in /openapi.json."""

from __future__ import annotations

from emulator.openapi.schemas import (
    ANY,
    COUNT,
    FLAG,
    TEXT,
    Schema,
    list_of,
    object_of,
    or_null,
    ref,
)
from handler.errors import OPENAI_CODES
from jobs import JobStatus

# No key is required here: which ones are needed depends on the worker.
_S3_CONFIG = {
    "accessId": "The access key.",
    "accessSecret": "The secret of the access key.",
    "bucketName": "The bucket's name.",
    "endpointUrl": "The S3 server, such as https://s3.eu-central-1.amazonaws.com.",
    "objectPath": "The folder in the bucket.",
}


def job_schemas(policy_bounds_ms: dict[str, tuple[int, int]]) -> dict[str, Schema]:
    """Return the schemas of jobs; `policy_bounds_ms` has the bounds of a job's policy."""
    status: Schema = {"type": "string", "enum": [each.value for each in JobStatus]}
    job_fields = {
        "delayTime": {**COUNT, "description": "Time in the queue, in milliseconds."},
        "executionTime": {**COUNT, "description": "Time on a worker, in milliseconds."},
        "workerId": TEXT,
        "error": TEXT,
        "output": {"description": "The worker's result, or its last progress report."},
    }
    input_fields = {"input": ANY, "webhook": TEXT}
    engine: dict[str, Schema] = {
        "state": {"enum": ["loading", "ready", "restarting", "dead", "unloaded"]},
        "slots": COUNT,
        "running": COUNT,
        "waiting": COUNT,
        "restarts": COUNT,
        "failure": or_null(TEXT),
        "trouble": or_null(TEXT),
    }
    reasons = ("failure", "trouble")
    handler_failure = object_of({"worker": TEXT, "reason": TEXT, "output": TEXT})
    s3_config = {
        **object_of({}, {name: {"description": text} for name, text in _S3_CONFIG.items()}),
        "description": "The bucket for the result. It is passed to the worker and never returned.",
    }
    milliseconds = {
        name: {"type": "integer", "minimum": minimum, "maximum": maximum}
        for name, (minimum, maximum) in policy_bounds_ms.items()
    }
    return {
        "Error": object_of(
            {
                "error": object_of(
                    {
                        "message": TEXT,
                        "type": TEXT,
                        "param": {"type": ["string", "null"]},
                        "code": {
                            "anyOf": [
                                {"type": "integer", "minimum": 400, "maximum": 599},
                                {"enum": list(OPENAI_CODES)},
                            ]
                        },
                    },
                    {"request_id": TEXT, "details": {"type": "object"}},
                )
            }
        ),
        "NamedError": object_of(
            {
                "error": object_of(
                    {"code": TEXT, "message": TEXT},
                    {"param": TEXT, "request_id": TEXT, "details": {"type": "object"}},
                )
            }
        ),
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
                "s3Config": or_null(s3_config),
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
            {"id": TEXT, "status": ref("JobStatus")}, job_fields | input_fields
        ),
        "Jobs": object_of({"requests": list_of(ref("Job"))}),
        "Stream": object_of(
            {"status": ref("JobStatus"), "stream": list_of(object_of({"output": ANY}))},
            {"message": {**TEXT, "description": "why a job that has ended has no more output"}},
        ),
        "Purged": object_of({"removed": COUNT, "status": {"const": "completed"}}),
        "EndpointHealth": object_of(
            {
                "jobs": _counts("completed", "failed", "inProgress", "inQueue", "retried"),
                "workers": _counts(
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
        "WorkerList": object_of(
            {
                "endpointVersion": COUNT,
                "summary": _counts(
                    "running", "idle", "initializing", "throttled", "unhealthy", "total"
                ),
                "workers": list_of(
                    object_of(
                        {
                            "id": TEXT,
                            "status": {
                                "enum": [
                                    *("RUNNING", "IDLE", "INITIALIZING", "THROTTLED"),
                                    "UNHEALTHY",
                                ]
                            },
                            "isStale": FLAG | {"description": "It runs code before a change."},
                            "version": COUNT,
                            "gpuCount": COUNT,
                            "image": TEXT | {"description": "The command that starts the worker."},
                            "uptimeSeconds": COUNT,
                            "gpuTypeId": or_null(TEXT),
                            "dataCenterId": TEXT,
                            "startedAt": or_null(TEXT),
                        }
                    )
                ),
            }
        ),
        "LogEvents": {
            "type": "string",
            "description": "Events whose `data` is JSON with `ts`, `source` and `line`.",
        },
        "Problem": object_of(
            {"title": TEXT, "status": COUNT, "detail": TEXT, "errors": list_of(ANY)},
            {"request_id": TEXT},
        ),
        "Health": object_of(
            {
                "status": {
                    "enum": ["ok", "loading", "restarting", "degraded", "draining", "unavailable"]
                },
                "jobs": object_of(
                    {"database": {"enum": ["ok", "memory", "unavailable"]}},
                    {"trouble": or_null(TEXT), "set_aside": list_of(TEXT)},
                ),
            },
            # Reasons, names and paths are sent with a key only, if the server requires one.
            {
                "engine": object_of(
                    {name: engine[name] for name in engine if name not in reasons},
                    {name: engine[name] for name in reasons},
                ),
                "handler": object_of(
                    {"state": {"enum": ["starting", "ready", "failed", "outdated"]}},
                    {"file": TEXT, "python": TEXT, "failure": or_null(handler_failure)},
                ),
                "model": TEXT,
                "models": list_of(
                    object_of(
                        {
                            "id": TEXT,
                            **engine,
                            "instances": list_of(
                                object_of(
                                    {
                                        name: engine[name]
                                        for name in ("state", "running", "restarts", *reasons)
                                    }
                                )
                            ),
                        }
                    )
                ),
                "batches": object_of({"set_aside": list_of(TEXT)}),
            },
        ),
        "Metrics": {"type": "string", "description": "Prometheus's text format."},
        "TakenJob": object_of({"id": TEXT, "input": ANY}, input_fields | {"s3Config": s3_config}),
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


def _each_nullable(schemas: dict[str, Schema]) -> dict[str, Schema]:
    return {name: or_null(schema) for name, schema in schemas.items()}


def _counts(*names: str) -> Schema:
    return object_of(dict.fromkeys(names, COUNT))
