"""A client of the server's job routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from emulator.http.allowed_hosts import is_loopback

FINAL_STATUSES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
_REQUEST_TIMEOUT_S = 30.0
# The first polls follow each other quickly: most jobs of tests are short.
_FIRST_POLL_S, _MAX_POLL_S = 0.01, 0.25
_MAX_BODY_CHARS = 300


class JobRequestFailed(Exception):
    """The server cannot be reached, or refused a request; the message is a sentence."""


class JobClient:
    """Sends jobs to one endpoint and waits for their end; without an endpoint, to the default."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: str | None = None) -> None:
        self._http = http
        self._prefix = f"/v2/{quote(endpoint, safe='')}" if endpoint else ""

    async def submit(self, job_input: Any, timeout_s: float) -> str:
        """Queue a job and return its id; it may run for at least `timeout_s`."""
        # The caller cancels the job when its time has passed; this is for a caller that has ended.
        limit_ms = int(timeout_s * 1000) + 60_000
        body = {"input": job_input, "policy": {"executionTimeout": limit_ms}}
        return str((await self._call("POST", "/run", body))["id"])

    async def get_status(self, job_id: str) -> dict[str, Any]:
        """Return the status of a job."""
        return await self._call("GET", f"/status/{quote(job_id, safe='')}")

    async def get_request(self, job_id: str) -> dict[str, Any]:
        """Return a kept job with its input."""
        return await self._call("GET", f"/requests/{quote(job_id, safe='')}")

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self._call("POST", f"/cancel/{quote(job_id, safe='')}")

    async def reset(self) -> int:
        """Cancel and remove all jobs of the endpoint; return how many."""
        return int((await self._call("POST", "/reset"))["removed"])

    async def wait(self, job_id: str, timeout_s: float) -> dict[str, Any] | None:
        """Return the status of a job when it has ended; None if it has not after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        poll_s = _FIRST_POLL_S
        while (job := await self.get_status(job_id))["status"] not in FINAL_STATUSES:
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                return None
            await asyncio.sleep(min(poll_s, remaining_s))
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)
        return job

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"{self._prefix}{path}"
        try:
            response = await self._http.request(method, url, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise JobRequestFailed(
                f"the server {self._http.base_url} does not answer: {reason}"
            ) from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != 200:
            reason = _find_reason(answer, response.text)
            raise JobRequestFailed(
                f"{method} {url} was refused with status {response.status_code}: {reason}"
            )
        if not isinstance(answer, dict):
            raise JobRequestFailed(
                f"{method} {url} was answered with something else than an object"
            )
        return answer


@asynccontextmanager
async def open_client(
    server: str, endpoint: str | None = None, api_key: str | None = None
) -> AsyncIterator[JobClient]:
    """Open a client of the server at an address. Raises JobRequestFailed if it is not a URL."""
    try:
        url = urlsplit(server)
        host = url.hostname
        # Raises ValueError if it is not a number.
        _ = url.port
    except ValueError:
        host = None
    if host is None or url.scheme not in ("http", "https"):
        raise JobRequestFailed(f"--server must be an http or https URL, got {server}")
    try:
        http = httpx2.AsyncClient(
            base_url=server.rstrip("/"),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            timeout=_REQUEST_TIMEOUT_S,
            # A proxy cannot reach this machine's own addresses.
            trust_env=not is_loopback(host),
            # Reading the certificates takes longer than a job.
            verify=url.scheme == "https",
        )
    except (ValueError, httpx2.InvalidURL):
        raise JobRequestFailed(
            "the address or the API key has characters that HTTP lacks"
        ) from None
    async with http:
        yield JobClient(http, endpoint)


def _find_reason(answer: Any, text: str) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if isinstance(message, str):
        return message
    if answer is not None:
        text = json.dumps(answer, ensure_ascii=False)
    return text[:_MAX_BODY_CHARS]
