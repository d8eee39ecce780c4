"""Which of a few names a call is counted under, whatever its path."""

from __future__ import annotations

from starlette.types import Scope

from emulator.calls import Plane, call_of
from emulator.metrics.instruments import OTHER

_OPENAI = (
    *("chat", "completions", "embeddings", "models", "files", "batches"),
    *("tokenize", "detokenize", "system"),
)
_OTHERS = (
    *("run", "runsync", "status", "status-sync", "stream", "cancel", "retry", "purge-queue"),
    *("requests", "health", "docs", "openapi.json", "metrics", "console"),
    *("job-take", "job-take-batch", "job-stop", "job-stream", "job-done", "ping"),
)
OPERATION_NAMES = (*_OTHERS, *_OPENAI, OTHER)
_KNOWN = frozenset(_OTHERS)


def operation_name(scope: Scope) -> str:
    """Return the name of the operation that is called, `other` where it is none of ours."""
    call = call_of(scope)
    if call.plane is not Plane.OPENAI:
        return call.operation if call.operation in _KNOWN else OTHER
    parts = scope["path"].split("/")
    # Behind an endpoint, which may have any name; and what follows may be a model's, or a file's.
    start = 3 if call.endpoint is not None else 1
    return next((part for part in parts[start:] if part in _OPENAI), OTHER)
