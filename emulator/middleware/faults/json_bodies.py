"""Faults that change a body of JSON."""

from __future__ import annotations

from typing import Any

import orjson

from emulator.middleware.faults.chunks import parse_json
from emulator.middleware.faults.encoding import BOM
from emulator.middleware.faults.parser import Faults

_INVALID_JSON = b"{'object': 'text_completion', 'choices': [None], 'ok': True}"
_UNKNOWN_STATUS = "RESTARTING"


def change_json_body(body: bytes, faults: Faults) -> bytes:
    """Return the body that is sent for a body of the application."""
    if "invalid-json" in faults:
        return _INVALID_JSON
    if "truncated-json" in faults or "truncated-body" in faults:
        return body[: len(body) // 2]
    if "json-bom" in faults:
        return BOM + body
    job = parse_json(body)
    return orjson.dumps(_change_job(job, faults)) if isinstance(job, dict) else body


def _change_job(job: dict[str, Any], faults: Faults) -> dict[str, Any]:
    if "first-chunk" in faults:
        return {"id": job.get("id"), "status": "IN_PROGRESS", "stream": job.get("stream", [])[:1]}
    if "job-unfinished" in faults:
        return {**job, "status": "IN_PROGRESS"}
    if "unknown-status" in faults:
        return {**job, "status": _UNKNOWN_STATUS}
    return {key: value for key, value in job.items() if key != "stream"}
