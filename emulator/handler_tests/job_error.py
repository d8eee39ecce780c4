"""The error of a failed job as a text for people."""

from __future__ import annotations

import json
from typing import Any

from emulator.runpod.handler_exception import format_exception


def format_job_error(error: Any) -> str:
    """Return the error of a job; of an exception in a handler, its traceback."""
    if error is None:
        return ""
    details = _load_object(error) if isinstance(error, str) else error
    if not isinstance(details, dict):
        return str(error)
    return format_exception(details) or json.dumps(details, indent=2, ensure_ascii=False)


def _load_object(text: str) -> Any:
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
