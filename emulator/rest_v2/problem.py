"""Errors in the format of RunPod's REST API v2, `application/problem+json`."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from starlette.responses import Response


def problem_response(status: int, detail: str) -> Response:
    """Return an error; `detail` is the sentence for the user."""
    body = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "errors": [],
    }
    return Response(orjson.dumps(body), status, media_type="application/problem+json")
