"""Take jobs from the worker that has just received them, as if it were lost."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs import JobStore

logger = logging.getLogger(__name__)


class LeaseLossMiddleware:
    """Ends the leases of the jobs in each response.

    Only the state of the jobs changes: the worker continues, and its results are ignored.
    """

    def __init__(self, app: ASGIApp, store: JobStore) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lease jobs to the worker, and end their leases at once."""
        body = bytearray()

        async def record_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, record_body)
        for job_id in _read_job_ids(bytes(body)):
            job = await self._store.get(job_id)
            if job is not None and job.worker_id is not None:
                logger.warning(
                    "lose-lease: job %s is taken from its worker", job_id, extra={"job_id": job_id}
                )
                await self._store.reclaim_jobs(job.worker_id, "lose-lease", job_id=job_id)


def _read_job_ids(body: bytes) -> list[str]:
    """Return the ids of the leased jobs in a response; none if it is an error."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    jobs = value if isinstance(value, list) else [value]
    return [job["id"] for job in jobs if isinstance(job, dict) and isinstance(job.get("id"), str)]
