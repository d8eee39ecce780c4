"""Read the body of an error, whose format depends on the path."""

from __future__ import annotations

from typing import Any


def read_reason(body: dict[str, Any]) -> str:
    """Return the sentence of an error in RunPod's format, OpenAI's or that of the REST API v2."""
    error = body.get("error", body.get("detail"))
    if isinstance(error, str):
        return error
    assert isinstance(error, dict), body
    reason = error.get("details", {}).get("reason", error["message"])
    assert isinstance(reason, str)
    return reason


def read_param(body: dict[str, Any]) -> str | None:
    """Return the name of the field that an error is about."""
    error = body["error"]
    param = body.get("param") if isinstance(error, str) else error["param"]
    assert param is None or isinstance(param, str)
    return param
