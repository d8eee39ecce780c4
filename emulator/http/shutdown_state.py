"""The end of the server: what is still begun, what may finish, and what everybody is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.request_target import (
    BATCH_CANCEL,
    JOB_CREATING_OPS,
    JOB_TAKE_OPS,
    RouteGroup,
    classify,
    uses_named_errors,
)
from emulator.http.responses import JSON, error_response
from handler.errors import ErrorInfo, ErrorMapping
from jobs import Job, JobStatus, JobStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_SHUTTING_DOWN = "the server is shutting down"
_AGAIN_S = 5
# So short a wait is not worth being cut.
_SHORT_S = 0.25
_KEY = "emulator.shutdown"
_TRY_LATER = ErrorMapping(429, "rate_limit_error", retryable=True)
_UNAVAILABLE = ErrorMapping(503, "service_unavailable_error", retryable=True)
SHUTTING_DOWN_ERROR = ErrorInfo(_SHUTTING_DOWN, _UNAVAILABLE, retry_after_s=_AGAIN_S)


class ShutdownState:
    """Counts what is being answered and knows how far the end has come. Owned by the event loop.

    `begun`: nothing new is begun; what runs may finish. `over`: the time for that is up.
    """

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.deadline_passed = asyncio.Event()
        # Calls that the engine answers directly. Others wait for a job, which counts as running,
        # or take no time.
        self.active_requests = 0
        self._answered = asyncio.Event()
        self._answered.set()
        self._until_begun: set[asyncio.Timeout] = set()
        self._until_over: set[asyncio.Timeout] = set()

    def start_draining(self) -> None:
        """Begin nothing new from here on; what waits for a beginning need not wait."""
        self.draining.set()
        _end(self._until_begun)

    def pass_deadline(self) -> None:
        """Have no more patience."""
        self.start_draining()
        self.deadline_passed.set()
        _end(self._until_over)

    async def wait_until_draining(self, work: Awaitable[T], otherwise: U) -> T | U:
        """Return what `work` returns, or the other thing as soon as nothing new is begun."""
        return await _until(self.draining, self._until_begun, work, otherwise)

    async def wait_until_deadline(self, work: Awaitable[T], otherwise: U) -> T | U:
        """Return what `work` returns, or the other thing as soon as the time is up."""
        return await _until(self.deadline_passed, self._until_over, work, otherwise)

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count a call that the engine answers."""
        self.active_requests += 1
        self._answered.clear()
        try:
            yield
        finally:
            self.active_requests -= 1
            if not self.active_requests:
                self._answered.set()

    async def wait_idle(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Return when the engine answers no call and, by `idle`, no job runs."""
        # One after the other: nothing new is begun.
        await self._answered.wait()
        await idle()


async def _until(
    event: asyncio.Event, limits: set[asyncio.Timeout], work: Awaitable[T], otherwise: U
) -> T | U:
    limit = asyncio.timeout(0 if event.is_set() else None)
    limits.add(limit)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        return otherwise
    finally:
        limits.discard(limit)


def _end(limits: set[asyncio.Timeout]) -> None:
    now = asyncio.get_running_loop().time()
    for limit in list(limits):
        if not limit.expired():
            limit.reschedule(now)


class DrainGate:
    """Turns away what would begin something once the end has begun, and counts what is answered.

    `/run` is turned away as well, though it would be durable: its job would wait for a start that
    may never come, and a 503 sends its client to try again or elsewhere. Workers that ask for jobs
    are told 429: the SDK waits 5 s after that, and after a 503 or a 204 not at all. All else is
    answered to the end: results, states, cancels, streams.
    """

    def __init__(self, app: ASGIApp, shutdown: ShutdownState) -> None:
        self._app = app
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 or 429, or let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_KEY] = self._shutdown
        call = classify(scope)
        if self._shutdown.draining.is_set():
            if call.operation in JOB_TAKE_OPS:
                refusal = ErrorInfo(_SHUTTING_DOWN, _TRY_LATER, retry_after_s=_AGAIN_S)
                await error_response(refusal)(scope, receive, send)
                return
            posted = call.group is RouteGroup.OPENAI and scope["method"] == "POST"
            if (posted and call.operation != BATCH_CANCEL) or (
                call.group is RouteGroup.CLIENT and call.operation in JOB_CREATING_OPS
            ):
                await shutting_down_response(scope)(scope, receive, send)
                return
        if call.group is not RouteGroup.OPENAI:
            await self._app(scope, receive, send)
            return
        with self._shutdown.track_request():
            await self._app(scope, receive, send)


class _Cut(Enum):
    """What a wait returns that the end has cut short; a job that is not kept is None."""

    CUT = "cut"


class DrainingStore:
    """A store as the routes see it: who waits there for what will not come any more is told so.

    A worker that waits for jobs gets none. A client that waits for a job which no worker has is
    shown it as it is at once; one whose job runs waits on until it ends or its time is up. All else
    is the store's own.
    """

    def __init__(self, store: JobStore, shutdown: ShutdownState) -> None:
        self._store = store
        self._shutdown = shutdown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def has_ready_job(self, endpoint: str) -> bool:
        """Tell whether a job waits that may be had."""
        return not self._shutdown.draining.is_set() and self._store.has_ready_job(endpoint)

    async def wait_for_job(self, endpoint: str) -> None:
        """Return when there may be one, or there will be none any more."""
        await self._shutdown.wait_until_draining(self._store.wait_for_job(endpoint), None)

    async def receive(
        self,
        endpoint: str,
        worker_id: str,
        *,
        lease_s: float,
        wait_s: float = 0.0,
        limit: int = 1,
        skip_lost: bool = False,
    ) -> list[Job]:
        """Lease jobs; none once the end has begun."""
        if self._shutdown.draining.is_set():
            return []
        leased = self._store.receive(
            endpoint, worker_id, lease_s=lease_s, wait_s=wait_s, limit=limit, skip_lost=skip_lost
        )
        return await self._shutdown.wait_until_draining(leased, [])

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it has ended, or as it is when it is not worth waiting for it."""
        if timeout_s <= _SHORT_S:
            return await self._store.wait(job_id, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        ended = await self._shutdown.wait_until_draining(
            self._store.wait(job_id, timeout_s), _Cut.CUT
        )
        if ended is not _Cut.CUT:
            return ended
        job = await self._store.get(job_id)
        if job is None or job.status is not JobStatus.IN_PROGRESS:
            return job
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        ended = await self._shutdown.wait_until_deadline(self._store.wait(job_id, left_s), _Cut.CUT)
        return await self._store.get(job_id) if ended is _Cut.CUT else ended


def shutting_down_response(scope: Scope) -> JSON:
    """Return what is said to whoever comes too late."""
    return error_response(SHUTTING_DOWN_ERROR, named=uses_named_errors(scope))


def is_cancelled_by_shutdown(scope: Scope) -> bool:
    """Whether the server's end is why a request was cancelled."""
    shutdown = scope.get(_KEY)
    return isinstance(shutdown, ShutdownState) and shutdown.deadline_passed.is_set()
