"""Which of the server's planes a call belongs to, told by its path before it is routed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from starlette.types import Scope

from emulator.console.assets import ASSETS
from emulator.openapi.paths import PATHS

# Paths that need no key, because they hold no data of jobs: the health check, the API's reference,
# and the console's page, which asks for a key itself.
OPEN = frozenset({"/health", *PATHS, *ASSETS})
# How it is doing, in numbers.
METRICS = "/metrics"
# A worker's calls; those that wait for something to do are held open.
WORKER_POSTS = frozenset({"job-stream", "job-done"})
TAKES = frozenset({"job-take", "job-take-batch"})
POLLS = TAKES | {"job-stop", "ping"}
# In the URLs of the server's own workers, where it has keys.
WORKER_KEY = b"worker_key"
# What the console asks for once a second.
LOOKS = frozenset({"console"})
# What would begin something new.
STARTS = frozenset({"run", "runsync", "retry"})
# The one call of OpenAI's that is posted and begins nothing.
BATCH_CANCEL = "batch-cancel"
# What OpenAI's routes of any dialect begin with.
_OPENAI = frozenset({"openai", "v1", "v3", "tokenize", "detokenize"})
# The oracle's have no prefix.
_ORACLE = frozenset({"chat", "completions", "embeddings", "models", "system"})


class Plane(Enum):
    """Who makes a call."""

    OPEN = "open"
    CLIENT = "client"
    OPENAI = "openai"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Call:
    """A call as far as its path tells; `endpoint` is None for the default one."""

    plane: Plane
    operation: str
    endpoint: str | None = None


def call_of(scope: Scope) -> Call:
    """Return which call a request is; an unknown path counts as a client's."""
    return _call(scope["path"])


# Each request is asked about a few times, and most are like the one before.
@lru_cache(maxsize=64)
def _call(path: str) -> Call:
    if path in OPEN or path == METRICS:
        return Call(Plane.OPEN, path[1:])
    parts = path.split("/")
    endpoint = None
    if parts[1] == "v2" and len(parts) > 3:
        endpoint = parts[2]
        parts = parts[2:]
    operation = parts[1]
    if endpoint is not None and (operation in POLLS or operation in WORKER_POSTS):
        return Call(Plane.WORKER, operation, endpoint)
    if parts[1:3] == ["v1", "batches"] and parts[-1] == "cancel":
        return Call(Plane.OPENAI, BATCH_CANCEL, endpoint)
    if operation in _OPENAI or operation in _ORACLE:
        return Call(Plane.OPENAI, "openai", endpoint)
    return Call(Plane.CLIENT, operation, endpoint)


def operation_of(path: str) -> str:
    """Return the name of the operation that a path asks for, with or without an endpoint."""
    parts = path.split("/", 4)
    if len(parts) == 1:
        # The router also looks up a path without its slashes at the end: "" for "//".
        return ""
    return parts[3] if parts[1] == "v2" and len(parts) > 3 else parts[1]


def has_named_errors(scope: Scope) -> bool:
    """Whether a request is told of errors as the oracle tells them (R53), before it is routed."""
    path: str = scope["path"]
    return path.split("/", 2)[1] in _ORACLE
