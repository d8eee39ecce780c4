"""The check of a line that another server answers: what needs no model and no settings of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batch.input.line import BadLine, Line
from common.value_description import describe_value

# The members of a body that each route must have, of which one is enough.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/embeddings": ("input", "messages"),
    "/v1/responses": ("input",),
    "/v1/rerank": ("query",),
    "/v1/score": ("text_1", "queries", "data_1"),
}
REMOTE_ROUTES = tuple(_REQUIRED)


def check_remote_line(line: Line) -> None:
    """Check a line's route and the members that each server requires. Raises BadLine.

    All other members are the server's: it may know more of them than this version does.
    """
    if line.route is None or line.route not in _REQUIRED:
        raise BadLine(
            f"url must be one of {', '.join(REMOTE_ROUTES)} with --server, got "
            f"{describe_value(line.route or 'a job')}"
        )
    body: Mapping[str, Any] = line.body
    if body.get("stream"):
        raise BadLine("body.stream must be false: a batch has nobody to stream to")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise BadLine(f"body.model must be a text, got {describe_value(model)}")
    required = _REQUIRED[line.route]
    if not any(name in body for name in required):
        raise BadLine(f"body.{' or body.'.join(required)} is missing")
