"""The responses that are sent instead of that of the application."""

from __future__ import annotations

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope

from common.json_object import JsonObject
from emulator.http.responses import error_response
from emulator.middleware.faults.parser import Faults
from handler.errors import ErrorInfo, ErrorMapping

_HTML_502 = (
    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
    "<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n"
    "</body>\r\n</html>\r\n"
)
_HTML_200 = (
    "<!DOCTYPE html>\n<html>\n<head><title>Log in</title></head>\n<body>\n"
    "<h1>Log in to the network</h1>\n</body>\n</html>\n"
)
_ERROR_200: JsonObject = {
    "error": {
        "message": "the model is overloaded",
        "type": "overloaded_error",
        "code": "overloaded",
    }
}
# The states of a job, by the fault.
_JOB_STATES = {
    "job-queued": "IN_QUEUE",
    "job-running": "IN_PROGRESS",
    "job-failed": "FAILED",
    "job-cancelled": "CANCELLED",
    "job-timed-out": "TIMED_OUT",
}
_JOB_ERROR = "this job failed on purpose: x-fault has job-failed"
# The error types of OpenAI's API by status.
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ERROR_NAMES = {429: "rate_limit_exceeded", 503: "service_unavailable"}
_ERROR_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def build_replacement(faults: Faults, scope: Scope) -> Response | None:
    """Return the response that faults require instead of the application's; None without one."""
    response: Response | None = None
    if "status" in faults:
        response = build_error(int(faults["status"]), faults.get("retry-after"), scope)
    elif "html-502" in faults:
        response = HTMLResponse(_HTML_502, 502)
    elif "html-200" in faults:
        response = HTMLResponse(_HTML_200)
    elif "error-200" in faults:
        response = JSONResponse(_ERROR_200)
    else:
        for name, state in _JOB_STATES.items():
            if name in faults:
                job_id = scope["path"].rpartition("/")[2]
                response = JSONResponse(_describe_job(job_id, state))
    if response is not None and "retry-after" in faults:
        response.headers["retry-after"] = f"{faults['retry-after']:g}"
    return response


def build_error(status: int, retry_after_s: float | None, scope: Scope) -> Response:
    """Return an error in the form of the request's API."""
    kind = _ERROR_TYPES.get(status)
    if kind is None:
        kind = "invalid_request_error" if status < 500 else "internal_error"
    mapping = ErrorMapping(
        status, kind, name=_ERROR_NAMES.get(status), code=_ERROR_CODES.get(status)
    )
    failure = ErrorInfo(
        "this request failed on purpose, as x-fault requires",
        mapping,
        retry_after_s=None if retry_after_s is None else int(retry_after_s),
    )
    return error_response(failure, scope)


def _describe_job(job_id: str, state: str) -> JsonObject:
    error = {"error": _JOB_ERROR} if state == "FAILED" else {}
    return {"id": job_id, "status": state, "stream": [], **error}
