"""The state of a shutdown, and the responses to requests that it affects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.types import Scope

from emulator.http.responses import JSON, error_response
from handler.errors import ErrorInfo, ErrorMapping

T = TypeVar("T")
U = TypeVar("U")

SHUTTING_DOWN = "the server is shutting down"
RETRY_AFTER_S = 5
SHUTTING_DOWN_ERROR = ErrorInfo(
    SHUTTING_DOWN,
    ErrorMapping(503, "service_unavailable_error", retryable=True),
    retry_after_s=RETRY_AFTER_S,
)
# The key of a request's scope that holds the server's ShutdownState.
SCOPE_KEY = "emulator.shutdown"


class ShutdownState:
    """The progress of a shutdown, and the number of active requests. Owned by the event loop.

    `draining` is set when the shutdown begins: no new work is started, running work may finish.
    `deadline_passed` is set when the time for running work (DRAIN_S) is over.
    """

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.deadline_passed = asyncio.Event()
        # Requests that the engine answers directly. Other requests wait for a job, which counts as
        # running work itself, or take no time.
        self.active_requests = 0
        self._no_active_requests = asyncio.Event()
        self._no_active_requests.set()
        self._until_draining: set[asyncio.Timeout] = set()
        self._until_deadline: set[asyncio.Timeout] = set()

    def start_draining(self) -> None:
        """Set `draining` and end every `wait_until_draining`."""
        self.draining.set()
        _expire(self._until_draining)

    def pass_deadline(self) -> None:
        """Set `draining` and `deadline_passed`, and end every wait for them."""
        self.start_draining()
        self.deadline_passed.set()
        _expire(self._until_deadline)

    async def wait_until_draining(self, work: Awaitable[T], default: U) -> T | U:
        """Return the result of `work`, or cancel it and return `default` when draining starts."""
        return await _wait_until(self.draining, self._until_draining, work, default)

    async def wait_until_deadline(self, work: Awaitable[T], default: U) -> T | U:
        """Return the result of `work`, or cancel it and return `default` at the deadline."""
        return await _wait_until(self.deadline_passed, self._until_deadline, work, default)

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count a request that the engine answers."""
        self.active_requests += 1
        self._no_active_requests.clear()
        try:
            yield
        finally:
            self.active_requests -= 1
            if not self.active_requests:
                self._no_active_requests.set()

    async def wait_idle(self, wait_for_jobs: Callable[[], Awaitable[None]]) -> None:
        """Return when no request is active and `wait_for_jobs` has returned."""
        # One after the other is enough: during a shutdown no new work is started.
        await self._no_active_requests.wait()
        await wait_for_jobs()


async def _wait_until(
    event: asyncio.Event, timeouts: set[asyncio.Timeout], work: Awaitable[T], default: U
) -> T | U:
    timeout = asyncio.timeout(0 if event.is_set() else None)
    timeouts.add(timeout)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise
        return default
    finally:
        timeouts.discard(timeout)


def _expire(timeouts: set[asyncio.Timeout]) -> None:
    now = asyncio.get_running_loop().time()
    for timeout in list(timeouts):
        if not timeout.expired():
            timeout.reschedule(now)


def shutting_down_response(scope: Scope) -> JSON:
    """Return the 503 response for a request that comes too late."""
    return error_response(SHUTTING_DOWN_ERROR, scope)


def is_cancelled_by_shutdown(scope: Scope) -> bool:
    """Return whether a cancelled request was cancelled because the drain deadline has passed."""
    shutdown = scope.get(SCOPE_KEY)
    return isinstance(shutdown, ShutdownState) and shutdown.deadline_passed.is_set()
