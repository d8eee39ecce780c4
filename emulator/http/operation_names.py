"""The operation names under which HTTP requests are counted and traced."""

from __future__ import annotations

from starlette.types import Scope

from emulator.http.request_target import RouteGroup, classify

OTHER = "other"
_OPENAI = (
    *("chat", "completions", "embeddings", "rerank", "score", "models"),
    *("files", "batches"),
    *("messages", "responses", "tokenize", "detokenize", "system"),
    # Ollama's.
    *("generate", "embed", "pull", "tags", "ps", "show", "version"),
)
_OTHERS = (
    *("run", "runsync", "status", "status-sync", "stream", "cancel", "retry", "purge-queue"),
    *("reset", "requests", "workers", "health", "docs", "openapi.json", "metrics", "console"),
    "faults",
    *("job-take", "job-take-batch", "job-stop", "job-stream", "job-done", "ping"),
)
OPERATION_NAMES = (*_OTHERS, *_OPENAI, OTHER)
_KNOWN = frozenset(_OTHERS)


def operation_name(scope: Scope) -> str:
    """Return the name of the requested operation, or `other` if it is unknown."""
    target = classify(scope)
    if target.group is not RouteGroup.OPENAI:
        return target.operation if target.operation in _KNOWN else OTHER
    parts = scope["path"].split("/")
    # Skip the endpoint, which may have any name. A model's or file's name may follow the operation.
    start = 3 if target.endpoint is not None else 1
    return next((part for part in parts[start:] if part in _OPENAI), OTHER)
