"""The state of the server in /openapi.json: health, metrics, workers and faults."""

from __future__ import annotations

from typing import Any

from emulator.http.error_format import ErrorFormat
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import (
    BODY_ERRORS,
    EVENTS,
    NOT_FOUND,
    PLAIN_TEXT,
    Operation,
    query,
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

_TAG = "Server"


def _faults(summary: str, response: str, **rest: Any) -> Operation:
    description = "Only on a server with `FAULTS_PER_REQUEST=on`."
    return Operation(summary=summary, tag=_TAG, response=response, description=description, **rest)


_OPERATIONS = {
    "/health": Operation(summary="Get the state of the server", tag=_TAG, response="Health"),
    "/metrics": Operation(
        summary="Get the metrics in Prometheus's text format",
        tag=_TAG,
        response="Metrics",
        response_type=PLAIN_TEXT,
    ),
    "/v2/serverless": Operation(
        summary="List the endpoints",
        tag=_TAG,
        response="EndpointList",
        description="In the shape of RunPod's REST API v2.",
    ),
    "/v2/serverless/{endpoint}": Operation(
        summary="Get an endpoint",
        tag=_TAG,
        response="Endpoint",
        description="In the shape of RunPod's REST API v2.",
        errors=(404,),
    ),
    "/v2/serverless/{endpoint}/workers": Operation(
        summary="List the workers of an endpoint",
        tag=_TAG,
        response="WorkerList",
        description="In the shape of RunPod's REST API v2.",
    ),
    "/v2/serverless/{endpoint}/workers/{worker}/logs": Operation(
        summary="Follow the log of a worker",
        tag=_TAG,
        response="LogEvents",
        response_type=EVENTS,
        description="Server-sent events, one a line: first the newest `tail` lines, or those "
        "`since` a time, or those after the event that the header `Last-Event-ID` names; then new "
        "lines as they come. The stream ends when the worker has ended.",
        query=(
            query("source", "Whose lines.", enum=["container", "system", "both"], default="both"),
            query(
                "tail",
                "How many lines come first.",
                type="integer",
                minimum=0,
                maximum=5_000,
                default=100,
            ),
            query("since", "The time of the first line.", type="string", format="date-time"),
        ),
        errors=(400, 404),
    ),
    "POST /faults": _faults(
        "Add a rule that makes requests fail",
        "FaultRule",
        body="NewFaultRule",
        errors=BODY_ERRORS,
    ),
    "GET /faults": _faults("List the rules and the faults", "FaultRules"),
    "DELETE /faults": _faults("Delete all rules", "DeletedFaultRules"),
    "DELETE /faults/{rule_id}": _faults("Delete a rule", "FaultRule", errors=NOT_FOUND),
}
_EXAMPLES = {
    "NewFaultRule": Example(
        {"fault": "status=503; retry-after=2", "operation": "chat", "times": 1}
    ),
}

_FAULT: Schema = TEXT | {
    "minLength": 1,
    "maxLength": 1_000,
    "description": "One or several faults, as in the header `x-fault`.",
}
# The operations and the bounds are those of `emulator/middleware/faults/rules.py`.
_RULE_OPERATION: Schema = TEXT | {"description": "Only requests of this operation, such as `chat`."}
_RULE_ENDPOINT: Schema = TEXT | {"description": "Only requests to the endpoint with this id."}
_PROBABILITY: Schema = {
    "type": "number",
    "minimum": 0,
    "maximum": 1,
    "description": "How likely the rule is applied to a request that it concerns.",
}


def _build_fault_schemas() -> dict[str, Schema]:
    times = {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_000_000,
        "description": "How many requests the rule is applied to; all of them if unset.",
    }
    return {
        "NewFaultRule": object_of(
            {"fault": _FAULT},
            {
                "endpoint": or_null(_RULE_ENDPOINT),
                "operation": or_null(_RULE_OPERATION),
                "probability": {**_PROBABILITY, "default": 1},
                "times": or_null(times),
            },
        )
        | {"additionalProperties": False},
        "FaultRule": object_of(
            {
                "id": TEXT,
                "fault": _FAULT,
                "endpoint": or_null(_RULE_ENDPOINT),
                "operation": or_null(_RULE_OPERATION),
                "probability": _PROBABILITY,
                "remaining": or_null(COUNT),
                "applied": COUNT,
            }
        ),
        "FaultRules": object_of(
            {
                "rules": list_of(ref("FaultRule")),
                "faults": {
                    "type": "object",
                    "additionalProperties": TEXT,
                    "description": "What each fault does, by how it is written.",
                },
            }
        ),
        "DeletedFaultRules": object_of({"deleted": COUNT}),
    }


def _build_state_schemas() -> dict[str, Schema]:
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
    handler = object_of(
        {"state": {"enum": ["starting", "ready", "idle", "failed", "outdated"]}},
        {
            "endpoint": TEXT,
            "file": or_null(TEXT),
            "image": or_null(TEXT),
            "python": TEXT,
            "failure": or_null(handler_failure),
        },
    )
    return {
        "WorkerList": object_of(
            {
                "endpointVersion": COUNT,
                "summary": counts_of(
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
        "EndpointList": object_of({"endpoints": list_of(ref("Endpoint"))}),
        "Endpoint": object_of(
            {
                **dict.fromkeys(("id", "name", "image", "createdAt"), TEXT),
                "type": {"enum": ["QUEUE"]},
                "workers": counts_of("min", "max", "idleTimeout"),
                "scaling": object_of(
                    {"type": {"enum": ["QUEUE_DELAY", "REQUEST_COUNT"]}},
                    {"queueDelay": {"type": "number"}, "requestCount": COUNT},
                ),
                "dataCenterIds": list_of(TEXT),
                "networkVolumes": list_of(TEXT),
                "timeout": COUNT,
                "flashboot": {"enum": ["OFF"]},
            }
        ),
        "LogEvents": {
            "type": "string",
            "description": "Events whose `data` is JSON with `ts`, `source` and `line`, and with "
            "`jobId` if it is known.",
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
                "handler": handler,
                "handlers": list_of(handler),
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
    }


def _build_schemas(settings: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas; the schemas of the faults only if their routes exist."""
    return _build_state_schemas() | (_build_fault_schemas() if settings.faults_per_request else {})


DESCRIPTION = ApiDescription(
    tags={_TAG: "State and metrics of the server."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"rule_id": "The rule's id."},
    error_schemas={ErrorFormat.PROBLEM: "Problem"},
)
