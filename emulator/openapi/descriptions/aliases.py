"""The paths of other servers for the same operations, in /openapi.json."""

from __future__ import annotations

from emulator.http.error_format import ErrorFormat
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.descriptions.jobs import ENDPOINT_TAG
from emulator.openapi.descriptions.openai import openai_operations
from emulator.openapi.operation import Operation, call_operation, wait_query
from emulator.openapi.schemas import TEXT, Schema, list_of, object_of
from emulator.settings.emulator_settings import EmulatorSettings

_TAG = "Aliases"
# The request's job was cancelled; its worker was lost or returned no valid answer.
_JOB_ERRORS = (499, 502)
_FOR_WORKER = wait_query("How long to wait for a worker that takes the request, in milliseconds.")


def _queued(summary: str, response: str, body: str) -> Operation:
    """Return a route of the endpoint's worker, which is called through the job queue."""
    return call_operation(
        summary,
        response,
        body,
        tag=_TAG,
        errors=_JOB_ERRORS,
        can_stream=True,
        query=(_FOR_WORKER,),
    )


_OPERATIONS = {
    **openai_operations("/v3", tag=_TAG, requires_model=True),
    **openai_operations("", tag=_TAG),
    # Through the job queue, so every call can fail as a job can.
    **openai_operations(
        "/openai/v1",
        tag=_TAG,
        errors=_JOB_ERRORS,
        models=(400, 404, 429, *_JOB_ERRORS, 500, 503, 504),
        query=(_FOR_WORKER,),
    ),
    "/openai/v1/responses": _queued("Create a response", "Response", "NewResponse"),
    "/openai/v1/messages": _queued("Create a message", "Message", "NewMessage"),
    "/openai/v1/messages/count_tokens": _queued(
        "Count the tokens of a message's prompt", "MessageTokens", "MessagePrompt"
    ),
    **{
        f"{method} /openai/v1/{{route}}": Operation(
            summary="Call a route of the endpoint's worker that has no body",
            tag=_TAG,
            response="WorkerAnswer",
            errors=(400, 404, 429, *_JOB_ERRORS, 500, 503, 504),
            query=(_FOR_WORKER,),
            description=f"The job's input is {form}.",
        )
        for method, form in (
            ("GET", "`openai_route` with an empty `openai_input`"),
            ("DELETE", "`route` and `method`"),
        )
    },
    "POST /openai/v1/{route}": _queued(
        "Call any other route of the endpoint's worker", "WorkerAnswer", "WorkerCall"
    ),
    "/system/status": Operation(
        summary="Get the state of the models",
        tag=_TAG,
        response="SystemStatus",
    ),
}
_EXAMPLES = {"WorkerCall": Example({"prompt": "The capital of France is", "max_tokens": 16})}


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    return {
        "NamedError": object_of(
            {
                "error": object_of(
                    {"code": TEXT, "message": TEXT},
                    {"param": TEXT, "request_id": TEXT, "details": {"type": "object"}},
                )
            }
        ),
        "SystemStatus": object_of(
            {
                "status": {"enum": ["operational", "loading", "unavailable"]},
                "models": list_of(object_of({"id": TEXT, "status": TEXT})),
                "uptime": {"type": "number"},
                "performance": object_of(
                    {
                        name: {"type": "number", "minimum": 0}
                        for name in (
                            "avg_latency_ms",
                            "requests_per_minute",
                            "throughput_tokens_per_second",
                        )
                    }
                ),
                "metrics": {"type": "object", "description": "The metrics of /metrics by name."},
            }
        ),
        "WorkerCall": {"type": "object", "description": "The body of the worker's route."},
        "WorkerAnswer": {"type": "object", "description": "The answer of the worker's route."},
    }


DESCRIPTION = ApiDescription(
    tags={
        ENDPOINT_TAG: "The operations of *Jobs* under RunPod's own paths, which name the endpoint.",
        _TAG: "The operations of *OpenAI* under the paths of other servers: `/v3` (OpenVINO Model "
        "Server, where `model` is required), no prefix (errors have a name for their code), and "
        "`/openai/v1` (RunPod's route through the job queue).",
    },
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"route": "The rest of the path."},
    error_schemas={ErrorFormat.NAMED: "NamedError"},
)
