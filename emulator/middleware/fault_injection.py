"""Failures on purpose, so that clients and workers can be tried against them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.http.disconnect import abort_connection
from emulator.http.request_target import (
    JOB_TAKE_OPS,
    WORKER_POST_OPS,
    RouteGroup,
    classify,
    uses_named_errors,
)
from emulator.http.responses import error_response
from handler.errors import ErrorInfo, ErrorMapping
from jobs import JobStore

logger = logging.getLogger(__name__)

_TOO_MANY = ErrorMapping(429, "rate_limit_error", retryable=True, name="rate_limit_exceeded")
_INTERNAL = ErrorMapping(500, "internal_error", retryable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often to fail, each as a share from 0 to 1; `delay_ms` is added to every client call."""

    too_many: float = 0.0
    internal: float = 0.0
    delay_ms: float = 0.0
    drop_post: float = 0.0
    lose_lease: float = 0.0
    seed: int | None = None

    def __bool__(self) -> bool:
        return any((self.too_many, self.internal, self.delay_ms, self.drop_post, self.lose_lease))


class FaultInjectionMiddleware:
    """Fails a share of the calls that come in, each kind by dice of its own.

    With a seed the same calls in the same order fail at every start, and switching one kind on
    changes nothing of the others. Client calls, OpenAI's included, are refused before anything is
    done for them; a worker's post is dropped before it is taken, so that the worker has to send it
    again; a lost lease is what the platform thinks: the worker works on, and what it posts is
    ignored.
    """

    def __init__(self, app: ASGIApp, rates: FaultRates, store: JobStore) -> None:
        self._app = app
        self._rates = rates
        self._store = store
        self._dice: Mapping[str, random.Random] = {
            # Dice that can be thrown again are what is wanted: nothing here is a secret.
            name: random.Random(None if rates.seed is None else f"{rates.seed} {name}")  # noqa: S311
            for name in ("too_many", "internal", "drop_post", "lose_lease")
        }
        logger.warning("FAULTS ON PURPOSE are switched on, and calls will fail: %s", rates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Fail, or let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = classify(scope)
        if call.group in (RouteGroup.CLIENT, RouteGroup.OPENAI):
            await self._client(scope, receive, send)
        elif call.operation in WORKER_POST_OPS and self._happens(
            "drop_post", self._rates.drop_post
        ):
            logger.warning("FAULT_DROP_POST: %s is dropped", scope["path"])
            if not await abort_connection(scope, receive):
                await _refusal("FAULT_DROP_POST", _INTERNAL, scope)(scope, receive, send)
        elif call.operation in JOB_TAKE_OPS and self._rates.lose_lease:
            await self._take(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _client(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self._rates.delay_ms / 1000)
        if self._happens("too_many", self._rates.too_many):
            await _refusal("FAULT_429", _TOO_MANY, scope)(scope, receive, send)
        elif self._happens("internal", self._rates.internal):
            await _refusal("FAULT_500", _INTERNAL, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand out jobs, and take some of them away as soon as the worker has them."""
        body = bytearray()

        async def overheard(message: Message) -> None:
            if message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, overheard)
        for job_id in _ids(bytes(body)):
            if self._happens("lose_lease", self._rates.lose_lease):
                job = await self._store.get(job_id)
                if job is not None and job.worker_id is not None:
                    logger.warning(
                        "FAULT_LOSE_LEASE: job %s is taken from its worker",
                        job_id,
                        extra={"job_id": job_id},
                    )
                    await self._store.reclaim_jobs(job.worker_id, "FAULT_LOSE_LEASE", job_id=job_id)

    def _happens(self, name: str, share: float) -> bool:
        return share > 0 and self._dice[name].random() < share


def _ids(body: bytes) -> list[str]:
    """Return the ids of the jobs that a worker was given; none in an error."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    jobs = found if isinstance(found, list) else [found]
    return [job["id"] for job in jobs if isinstance(job, dict) and isinstance(job.get("id"), str)]


def _refusal(setting: str, row: ErrorMapping, scope: Scope) -> ASGIApp:
    failure = ErrorInfo(f"this call failed on purpose: {setting} is set", row)
    return error_response(failure, named=uses_named_errors(scope))
