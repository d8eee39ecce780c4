"""The error of a failed job as a text for people."""

from __future__ import annotations

import json
from typing import Any


def format_job_error(error: Any) -> str:
    """Return the error of a job; of an exception in a handler, its traceback.

    RunPod's SDK sends an exception as the text of a JSON object with its type, its message and its
    traceback, in which the line feeds are escaped.
    """
    if error is None:
        return ""
    details = _load_object(error) if isinstance(error, str) else error
    if not isinstance(details, dict):
        return str(error)
    traceback = details.get("error_traceback")
    if isinstance(traceback, str) and traceback.strip():
        return traceback.strip()
    message = details.get("error_message")
    return str(message) if message else json.dumps(details, indent=2, ensure_ascii=False)


def _load_object(text: str) -> Any:
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
