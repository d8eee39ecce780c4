"""Classify a request by its path before it is routed: its API, operation and endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from starlette.types import Scope

from emulator.http.open_paths import METRICS_PATH, OPEN_PATHS

# Operations of workers. The server holds the polls open until there is something to do.
WORKER_POST_OPS = frozenset({"job-stream", "job-done"})
JOB_TAKE_OPS = frozenset({"job-take", "job-take-batch"})
WORKER_POLL_OPS = JOB_TAKE_OPS | {"job-stop", "ping"}
# Query parameter in the URLs of managed workers, if the server requires API keys.
WORKER_KEY_PARAM = b"worker_key"
# The console requests these once a second.
CONSOLE_POLLS = frozenset({"console"})
# Sets the rules for faults, so faults never apply to it.
FAULTS = "faults"
# Operations that create a job.
JOB_CREATING_OPS = frozenset({"run", "runsync", "retry"})
# The only POST request of the OpenAI API that starts no work.
BATCH_CANCEL = "batch-cancel"
# The paths of RunPod's REST API v2 begin with /v2/serverless/{endpoint}/workers.
REST_V2, WORKER_LIST = "serverless", "workers"
# First path segments of the OpenAI routes with a prefix, and of Ollama's API.
_OPENAI = frozenset({"openai", "v1", "v3", "api", "tokenize", "detokenize"})
# First path segments of the `oracle` dialect, whose routes have no prefix.
ORACLE_SEGMENTS = frozenset(
    {"chat", "completions", "embeddings", "rerank", "score", "models", "system"}
)


class RouteGroup(Enum):
    """The API that a request belongs to."""

    PUBLIC = "public"
    CLIENT = "client"
    OPENAI = "openai"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Which API, operation and endpoint a request is for.

    `endpoint` is None if the path names none: then it is the server's default endpoint.
    """

    group: RouteGroup
    operation: str
    endpoint: str | None = None


def classify(scope: Scope) -> RequestTarget:
    """Return the target of a request; an unknown path belongs to the client API."""
    path: str = scope["path"]
    if path in OPEN_PATHS or path == METRICS_PATH:
        return RequestTarget(RouteGroup.PUBLIC, path[1:])
    parts = path.split("/")
    endpoint = None
    if parts[1:3] == ["v2", REST_V2] and parts[4:5] == [WORKER_LIST]:
        return RequestTarget(RouteGroup.CLIENT, WORKER_LIST, parts[3])
    if parts[1] == "v2" and len(parts) > 3:
        endpoint = parts[2]
        parts = parts[2:]
    operation = parts[1]
    if endpoint is not None and (operation in WORKER_POLL_OPS or operation in WORKER_POST_OPS):
        return RequestTarget(RouteGroup.WORKER, operation, endpoint)
    if parts[1:3] == ["v1", "batches"] and parts[-1] == "cancel":
        return RequestTarget(RouteGroup.OPENAI, BATCH_CANCEL, endpoint)
    if operation in _OPENAI or operation in ORACLE_SEGMENTS:
        return RequestTarget(RouteGroup.OPENAI, "openai", endpoint)
    return RequestTarget(RouteGroup.CLIENT, operation, endpoint)
