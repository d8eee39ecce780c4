"""The operations of the API by path, written by hand. Tests compare them with the routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs import JobStatus

ENDPOINT = "/v2/{endpoint}"
JSON = "application/json"
FORM = "multipart/form-data"
BYTES = "application/octet-stream"
TEXT = "text/plain"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the API.

    `response` and `body` are names of schemas. `content_types` are the types of the body,
    `response_type` is the response's. `errors` are the status codes of errors. `may_be_empty` means
    that the status can be 204, `can_stream` that the response can be server-sent events.
    """

    summary: str
    tag: str
    response: str
    description: str | None = None
    body: str | None = None
    content_types: tuple[str, ...] = (JSON,)
    response_type: str = JSON
    query: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    may_be_empty: bool = False
    can_stream: bool = False


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_WAIT = _query(
    "wait",
    "How long to wait for the end of the job, in milliseconds.",
    type="integer",
    minimum=1_000,
    maximum=300_000,
    default=90_000,
)
_FOR_WORKER = {
    **_WAIT,
    "description": "How long to wait for a worker that takes the request, in milliseconds.",
}
_BATCH = _query(
    "batch_size",
    "The largest number of jobs to return.",
    type="integer",
    minimum=1,
    maximum=1_000,
    default=1,
)
_JOBS, _OPENAI, _RESPONSES, _MESSAGES = "Jobs", "OpenAI", "Responses", "Messages"
_OLLAMA = "Ollama"
_BATCHES, _ALIASES = "Batches", "Aliases"
_SERVER, _ENDPOINTS, _CONSOLE, _WORKERS = "Server", "Endpoints", "Console", "Workers"
# In the order in which a reader meets them.
TAGS = {
    _JOBS: "RunPod's job API: queue a job, wait for it, stream its output, cancel it.",
    _OPENAI: "OpenAI's API. Any OpenAI client works with the base URL `/v1`.",
    _RESPONSES: "OpenAI's Responses API, which agents use.",
    _MESSAGES: "Anthropic's Messages API. Its clients, such as Claude Code, work with the server's "
    "address as base URL.",
    _OLLAMA: "Ollama's API. Its clients work with the server's address as their host.",
    _BATCHES: "OpenAI's batch API: upload a file of requests, have it answered, download the "
    "answers.",
    _SERVER: "State and metrics of the server.",
    _ENDPOINTS: "The operations of *Jobs* under RunPod's own paths, which name the endpoint.",
    _ALIASES: "The operations of *OpenAI* under the paths of other servers: `/v3` (OpenVINO Model "
    "Server, where `model` is required), no prefix (errors have a name for their code), and "
    "`/openai/v1` (RunPod's route through the job queue).",
    _CONSOLE: "Used by the web console.",
    _WORKERS: "Called by workers of RunPod's SDK. Needed only for a worker that does not use the "
    "SDK.",
}
# Documented on the page about OpenAI's API, docs/openai.md.
OPENAI_TAGS = frozenset({_OPENAI, _RESPONSES, _BATCHES, _ALIASES})
_NOT_FOUND = (404,)
_BODY_ERRORS = (400, 413, 415)
_CREATION_ERRORS = (*_BODY_ERRORS, 429, 503)
# The request's job was cancelled; its worker was lost or returned no valid answer.
_JOB = (499, 502)
_PAGE_QUERY = (
    _query("after", "The id after which the page begins.", type="string"),
    _query("order", "The order of the creation times.", enum=["asc", "desc"], default="desc"),
)
_POSTED = (JSON, "application/x-www-form-urlencoded")
_LINES = "Unless `stream` is false, the answer is a stream of such objects, one a line."
_STREAMING = "With `stream: true` the answer is a stream of server-sent events."


def _client(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_JOBS, response=response, **rest)


def _worker(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_WORKERS, response=response, **rest)


def _openai(
    summary: str,
    response: str,
    body: str,
    errors: tuple[int, ...] = (),
    tag: str = _OPENAI,
    **rest: Any,
) -> Operation:
    errors = (*_CREATION_ERRORS, 404, 500, 504, *errors)
    return Operation(summary=summary, tag=tag, response=response, body=body, errors=errors, **rest)


def _queued(summary: str, response: str, body: str) -> Operation:
    """Return a route of the endpoint's worker, which is called through the job queue."""
    return _openai(summary, response, body, _JOB, _ALIASES, can_stream=True, query=(_FOR_WORKER,))


def _family(
    prefix: str,
    *,
    errors: tuple[int, ...] = (),
    models: tuple[int, ...] = (),
    tag: str = _ALIASES,
    **rest: Any,
) -> dict[str, Operation]:
    """Return the routes under one prefix; `errors` and `models` are its additional failures."""
    return {
        f"{prefix}/completions": _openai(
            "Complete a prompt",
            "CompletionAnswer",
            "Completion",
            errors,
            tag,
            can_stream=True,
            description=_STREAMING,
            **rest,
        ),
        f"{prefix}/chat/completions": _openai(
            "Answer a chat",
            "ChatAnswer",
            "Chat",
            errors,
            tag,
            can_stream=True,
            description=_STREAMING,
            **rest,
        ),
        f"{prefix}/embeddings": _openai(
            "Create embeddings", "EmbeddingsAnswer", "Embeddings", errors, tag, **rest
        ),
        f"{prefix}/rerank": _openai(
            "Sort documents by relevance", "RerankAnswer", "Rerank", errors, tag, **rest
        ),
        f"{prefix}/score": _openai(
            "Score pairs of texts", "ScoreAnswer", "Score", errors, tag, **rest
        ),
        f"{prefix}/models": Operation(
            summary="List models", tag=tag, response="Models", errors=models, **rest
        ),
        f"{prefix}/models/{{model}}": Operation(
            summary="Get a model", tag=tag, response="Model", errors=(404, *models), **rest
        ),
    }


def _batches(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_BATCHES, response=response, **rest)


def _responses(summary: str, response: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_RESPONSES, response=response, errors=(400, 404), **rest)


def _faults(summary: str, response: str, **rest: Any) -> Operation:
    description = "Only on a server with `FAULTS_PER_REQUEST=on`."
    return Operation(
        summary=summary, tag=_SERVER, response=response, description=description, **rest
    )


def _limit(maximum: int, default: int) -> dict[str, Any]:
    description = "The largest number of items to return."
    return _query("limit", description, type="integer", minimum=1, maximum=maximum, default=default)


# By path, preceded by the method if a path has several. An operation that exists with and without
# `/v2/{endpoint}` is listed without it.
OPERATIONS = {
    "/run": _client(
        "Queue a job",
        "Accepted",
        body="NewJob",
        errors=_CREATION_ERRORS,
        description="Returns the job's id as soon as the job is stored. Read the result with "
        "`/status/{job_id}`, or stream the output with `/stream/{job_id}`.",
    ),
    "/runsync": _client(
        "Queue a job and wait for its result",
        "Job",
        body="NewJob",
        query=(_WAIT,),
        errors=(*_CREATION_ERRORS, 404),
    ),
    "/status/{job_id}": _client("Get a job's status and result", "Job", errors=_NOT_FOUND),
    "/status-sync/{job_id}": _client(
        "Wait for a job's result", "Job", query=(_WAIT,), errors=(400, 404)
    ),
    "/stream/{job_id}": _client(
        "Stream a job's output",
        "Stream",
        description="As JSON: the output since the last call. With `Accept: text/event-stream`: "
        "the whole output as server-sent events, to the end of the job.",
        errors=(400, 404),
        can_stream=True,
    ),
    "/cancel/{job_id}": _client("Cancel a job", "Accepted", errors=(404, 503)),
    "/retry/{job_id}": _client("Retry a failed job", "Accepted", errors=(400, 404, 503)),
    "/purge-queue": _client("Cancel all queued jobs", "Purged", errors=(503,)),
    "/reset": _client(
        "Cancel and remove all jobs",
        "Purged",
        description="Empties the queue, cancels the running jobs and removes all results of the "
        "endpoint. Only this server has it, not RunPod.",
        errors=(503,),
    ),
    "/requests": _client("List the newest jobs", "Jobs"),
    "/requests/{job_id}": _client("Get a job with its input", "JobAndInput", errors=_NOT_FOUND),
    f"{ENDPOINT}/health": _client("Count the jobs and workers of an endpoint", "EndpointHealth"),
    "/job-take/{worker}": _worker("Take a job", "TakenJob", errors=(429,), may_be_empty=True),
    "/job-take-batch/{worker}": _worker(
        "Take several jobs", "TakenJobs", query=(_BATCH,), errors=(400, 429), may_be_empty=True
    ),
    "/job-stop/{worker}": _worker("Get the jobs to stop", "JobsToStop", may_be_empty=True),
    "/job-stream/{worker}/{job_id}": _worker(
        "Send a part of a job's output",
        "Taken",
        body="Chunk",
        content_types=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/job-done/{worker}/{job_id}": _worker(
        "Send a job's result, or a progress report",
        "Taken",
        body="Result",
        content_types=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/ping/{worker}": _worker("Send a heartbeat", "Taken"),
    **_family("/v1", tag=_OPENAI),
    **_family("/v3"),
    **_family(""),
    "POST /v1/responses": _openai(
        "Create a response",
        "Response",
        "NewResponse",
        tag=_RESPONSES,
        can_stream=True,
        description=_STREAMING,
    ),
    "GET /v1/responses/{response_id}": _responses(
        "Get a response",
        "Response",
        can_stream=True,
        description="With `stream=true` the events of a background response, as they come.",
        query=(
            _query("stream", "Whether to stream the events.", enum=["true", "false"]),
            _query(
                "starting_after",
                "The `sequence_number` of the last event that the client has.",
                type="integer",
                minimum=0,
                maximum=999_999_999,
            ),
        ),
    ),
    "DELETE /v1/responses/{response_id}": _responses("Delete a response", "DeletedResponse"),
    "/v1/responses/{response_id}/input_items": _responses(
        "List the input items of a response",
        "InputItems",
        query=(
            _limit(100, 20),
            _query("after", "The id after which the page begins.", type="string"),
            _query("order", "The order of the items.", enum=["asc", "desc"], default="desc"),
        ),
    ),
    "/v1/responses/{response_id}/cancel": _responses("Cancel a background response", "Response"),
    # Through the job queue, so every call can fail as a job can.
    **_family(
        "/openai/v1",
        errors=_JOB,
        models=(400, 404, 429, *_JOB, 500, 503, 504),
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
            tag=_ALIASES,
            response="WorkerAnswer",
            errors=(400, 404, 429, *_JOB, 500, 503, 504),
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
    "/v1/messages": _openai(
        "Create a message",
        "Message",
        "NewMessage",
        tag=_MESSAGES,
        can_stream=True,
        description=_STREAMING,
    ),
    "/v1/messages/count_tokens": _openai(
        "Count the tokens of a message's prompt", "MessageTokens", "MessagePrompt", tag=_MESSAGES
    ),
    "/api/chat": _openai(
        "Answer a chat",
        "OllamaChatAnswer",
        "OllamaChat",
        tag=_OLLAMA,
        description=_LINES,
    ),
    "/api/generate": _openai(
        "Answer a prompt", "OllamaAnswer", "OllamaPrompt", tag=_OLLAMA, description=_LINES
    ),
    "/api/embed": _openai("Embed texts", "OllamaVectors", "OllamaTexts", tag=_OLLAMA),
    "/api/embeddings": _openai(
        "Embed one text, in the older form", "OllamaVector", "OllamaText", tag=_OLLAMA
    ),
    "/api/show": Operation(
        summary="Get the details of a model",
        tag=_OLLAMA,
        response="OllamaModel",
        body="OllamaModelName",
        errors=(*_BODY_ERRORS, *_NOT_FOUND),
    ),
    "/api/pull": Operation(
        summary="Download a model from the Hugging Face Hub, and serve it",
        tag=_OLLAMA,
        response="OllamaStatus",
        body="OllamaPull",
        errors=(*_BODY_ERRORS, *_NOT_FOUND, 429),
        description=_LINES,
    ),
    "/api/tags": Operation(summary="List the models", tag=_OLLAMA, response="OllamaModels"),
    "/api/ps": Operation(summary="List the loaded models", tag=_OLLAMA, response="OllamaModels"),
    "/api/version": Operation(
        summary="Get the version of the API", tag=_OLLAMA, response="OllamaVersion"
    ),
    "/system/status": Operation(
        summary="Get the state of the models",
        tag=_ALIASES,
        response="SystemStatus",
    ),
    "POST /v1/files": _batches(
        "Upload a file of requests",
        "File",
        body="NewFile",
        content_types=(FORM,),
        errors=(*_BODY_ERRORS, 503, 507),
    ),
    "GET /v1/files": _batches(
        "List files",
        "Files",
        query=(
            _limit(10_000, 10_000),
            *_PAGE_QUERY,
            _query("purpose", "Only files with this purpose.", type="string"),
        ),
        errors=(400,),
    ),
    "GET /v1/files/{file_id}": _batches("Get a file's description", "File", errors=_NOT_FOUND),
    "DELETE /v1/files/{file_id}": _batches("Delete a file", "DeletedFile", errors=(400, 404, 507)),
    "/v1/files/{file_id}/content": _batches(
        "Download a file", "FileContent", response_type=BYTES, errors=_NOT_FOUND
    ),
    "POST /v1/batches": _batches(
        "Create a batch", "Batch", body="NewBatch", errors=(*_CREATION_ERRORS, 404, 507)
    ),
    "GET /v1/batches": _batches(
        "List batches", "Batches", query=(_limit(100, 20), *_PAGE_QUERY), errors=(400,)
    ),
    "/v1/batches/{batch_id}": _batches("Get a batch", "Batch", errors=_NOT_FOUND),
    "/v1/batches/{batch_id}/cancel": _batches("Cancel a batch", "Batch", errors=(400, 404, 507)),
    "/tokenize": _openai("Tokenize a text", "Tokens", "Tokenize"),
    "/detokenize": _openai("Turn token ids into text", "Detokenized", "Detokenize"),
    "/metrics": Operation(
        summary="Get the metrics in Prometheus's text format",
        tag=_SERVER,
        response="Metrics",
        response_type=TEXT,
    ),
    "/console/description": Operation(
        summary="Get the forms, their parameters and the engine",
        tag=_CONSOLE,
        response="ConsoleDescription",
    ),
    "/console/jobs": Operation(
        summary="List an endpoint's newest jobs with their times",
        tag=_CONSOLE,
        response="ConsoleJobs",
        query=(
            _query("endpoint", "The endpoint; the server's own if unset.", type="string"),
            _query("status", "Only jobs in this state.", enum=[each.value for each in JobStatus]),
        ),
        errors=(400,),
    ),
    "/console/jobs/{job_id}/test": Operation(
        summary="Add a job to the handler's tests.json",
        tag=_CONSOLE,
        response="SavedTest",
        body="NewTest",
        errors=(400, 404, 413, 415, 429),
        description="On a server without `--handler` the answer is 404. The file may have 1,000 "
        "tests and 16 MB; beyond that the answer is 413.",
    ),
    "/console/jobs/{job_id}": Operation(
        summary="Get a job of any endpoint, or follow it as server-sent events",
        tag=_CONSOLE,
        response="ConsoleJob",
        errors=_NOT_FOUND,
        can_stream=True,
    ),
    "/v2/serverless/{endpoint}/workers": Operation(
        summary="List the workers of an endpoint",
        tag=_SERVER,
        response="WorkerList",
        description="In the shape of RunPod's REST API v2.",
    ),
    "/v2/serverless/{endpoint}/workers/{worker}/logs": Operation(
        summary="Follow the log of a worker",
        tag=_SERVER,
        response="LogEvents",
        response_type=EVENTS,
        description="Server-sent events, one a line: first the newest `tail` lines, or those "
        "`since` a time, or those after the event that the header `Last-Event-ID` names; then new "
        "lines as they come. The stream ends when the worker has ended.",
        query=(
            _query("source", "Whose lines.", enum=["container", "system", "both"], default="both"),
            _query(
                "tail",
                "How many lines come first.",
                type="integer",
                minimum=0,
                maximum=5_000,
                default=100,
            ),
            _query("since", "The time of the first line.", type="string", format="date-time"),
        ),
        errors=(400, 404),
    ),
    "POST /faults": _faults(
        "Add a rule that makes requests fail",
        "FaultRule",
        body="NewFaultRule",
        errors=_BODY_ERRORS,
    ),
    "GET /faults": _faults("List the rules and the faults", "FaultRules"),
    "DELETE /faults": _faults("Delete all rules", "DeletedFaultRules"),
    "DELETE /faults/{rule_id}": _faults("Delete a rule", "FaultRule", errors=_NOT_FOUND),
    "/health": Operation(summary="Get the state of the server", tag=_SERVER, response="Health"),
}


def tag_at_path(operation: Operation, path: str) -> str:
    """Return the tag of an operation at one of its paths."""
    return _ENDPOINTS if operation.tag == _JOBS and path.startswith(ENDPOINT) else operation.tag


def find_operation(path: str, method: str) -> Operation | None:
    """Return the operation of a route; None if the route is not documented."""
    short = path.removeprefix(ENDPOINT)
    for name in (f"{method} {path}", path, f"{method} {short}", short):
        if (operation := OPERATIONS.get(name)) is not None:
            return operation
    return None
