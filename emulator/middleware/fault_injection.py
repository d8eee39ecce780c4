"""Inject failures, to test how clients and workers handle them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.http.disconnect import abort_connection
from emulator.http.responses import error_response
from emulator.http.route_facts import read_route
from emulator.settings.limits import FaultRates
from handler.errors import RATE_LIMITED, ErrorInfo, ErrorMapping
from jobs import JobStore

logger = logging.getLogger(__name__)

_INTERNAL = ErrorMapping(500, "internal_error", retryable=True)


class FaultInjectionMiddleware:
    """Makes a fraction of the requests fail; each kind of fault has its own random generator.

    With a seed, the same requests in the same order fail after every start, and enabling one kind
    does not change the others. Client and OpenAI requests are rejected before they are processed. A
    worker's POST is dropped before it is processed, so the worker has to send it again. A lost
    lease only changes the state of the job: the worker continues, and its result is ignored.
    """

    def __init__(self, app: ASGIApp, rates: FaultRates, store: JobStore) -> None:
        self._app = app
        self._rates = rates
        self._store = store
        self._generators: Mapping[str, random.Random] = {
            # Reproducible on purpose: these numbers protect no secret.
            name: random.Random(None if rates.seed is None else f"{rates.seed} {name}")  # noqa: S311
            for name in ("status_429", "status_500", "drop_post", "lose_lease")
        }
        logger.warning("fault injection is on, so calls will fail: %s", rates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the request fail, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_route = read_route(scope)
        facts = request_route.facts
        if not facts.allows_faults:
            await self._app(scope, receive, send)
        elif request_route.is_client:
            await self._handle_client_request(scope, receive, send)
        elif facts.sends_output and self._happens("drop_post", self._rates.drop_post):
            logger.warning("FAULT_DROP_POST: %s is dropped", scope["path"])
            if not await abort_connection(scope, receive):
                await _error("FAULT_DROP_POST", _INTERNAL, scope)(scope, receive, send)
        elif facts.takes_jobs and self._rates.lose_lease:
            await self._handle_job_take(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _handle_client_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self._rates.delay_ms / 1000)
        if self._happens("status_429", self._rates.status_429):
            await _error("FAULT_429", RATE_LIMITED, scope)(scope, receive, send)
        elif self._happens("status_500", self._rates.status_500):
            await _error("FAULT_500", _INTERNAL, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _handle_job_take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lease jobs to the worker, and end the leases of some of them at once."""
        body = bytearray()

        async def record_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, record_body)
        for job_id in _read_job_ids(bytes(body)):
            if self._happens("lose_lease", self._rates.lose_lease):
                job = await self._store.get(job_id)
                if job is not None and job.worker_id is not None:
                    logger.warning(
                        "FAULT_LOSE_LEASE: job %s is taken from its worker",
                        job_id,
                        extra={"job_id": job_id},
                    )
                    await self._store.reclaim_jobs(job.worker_id, "FAULT_LOSE_LEASE", job_id=job_id)

    def _happens(self, name: str, fraction: float) -> bool:
        return fraction > 0 and self._generators[name].random() < fraction


def _read_job_ids(body: bytes) -> list[str]:
    """Return the ids of the leased jobs in a response; none if it is an error."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    jobs = value if isinstance(value, list) else [value]
    return [job["id"] for job in jobs if isinstance(job, dict) and isinstance(job.get("id"), str)]


def _error(setting: str, mapping: ErrorMapping, scope: Scope) -> ASGIApp:
    failure = ErrorInfo(f"this call failed on purpose: {setting} is set", mapping)
    return error_response(failure, scope)
