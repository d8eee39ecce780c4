"""The application's part of a shutdown: wait for what runs, for a limited time, and log it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from emulator.http.shutdown_state import ShutdownState

logger = logging.getLogger(__name__)

# The interval at which changes of what is still running are logged.
_PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True)
class RunningWork:
    """How much runs: jobs on any worker, requests that the engine answers directly, batches."""

    jobs: int = 0
    requests: int = 0
    batches: int = 0

    def __str__(self) -> str:
        """Return the counts as a phrase: `2 jobs, 1 request and 1 batch`."""
        counts = (
            (self.jobs, "job", "jobs"),
            (self.requests, "request or stream", "requests and streams"),
            (self.batches, "batch", "batches"),
        )
        phrases = [
            f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count
        ]
        *rest, last = phrases or ["nothing"]
        return f"{', '.join(rest)} and {last}" if rest else last

    def __bool__(self) -> bool:
        return bool(self.jobs or self.requests or self.batches)


class GracefulShutdown:
    """Waits for running work until it ends, `limit_s` is over, or a second signal comes.

    `idle` returns when no job runs, here or on a worker elsewhere. `give_back` stops the
    local worker from taking jobs, waits up to that many seconds for those it runs, and returns the
    rest to the queue. Jobs on other workers keep their leases, which outlive the server.
    `under_way` counts the running work for the log.
    """

    def __init__(
        self,
        shutdown: ShutdownState,
        limit_s: float,
        idle: Callable[[], Awaitable[None]],
        give_back: Callable[[float], Coroutine[Any, Any, None]],
        under_way: Callable[[], RunningWork] = RunningWork,
    ) -> None:
        self.state = shutdown
        self._limit_s = limit_s
        self._idle = idle
        self._give_back = give_back
        self._under_way = under_way
        self.force = asyncio.Event()
        # Set when the server is to end by itself, with the reason for an exit code other than 0.
        self.requested = asyncio.Event()
        self.failure: str | None = None

    def fail(self, reason: str) -> None:
        """Begin the end because the server is of no use any more; it exits with code 1."""
        logger.error("the server ends with exit code 1: %s", reason)
        self.failure = reason
        self.requested.set()

    async def wait(self) -> None:
        """Let what runs finish, for as long as it may; then end the drain."""
        self.state.start_draining()
        waited_for = self._under_way()
        self._log_begin(waited_for)
        local = asyncio.create_task(self._give_back(self._limit_s))
        settled = asyncio.create_task(self._settled(local))
        hurry = asyncio.create_task(self.force.wait())
        progress = asyncio.create_task(self._log_progress(waited_for))
        await asyncio.wait(
            {settled, hurry}, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (settled, hurry, progress):
            task.cancel()
        if not settled.done():
            why = "second signal" if self.force.is_set() else f"{self._limit_s:g} s (DRAIN_S) over"
            logger.warning(
                "%s: ending %s that had not finished; jobs go back to the queue",
                why,
                self._under_way(),
            )
        elif waited_for:
            logger.info("everything that was running has finished")
        self.state.pass_deadline()
        local.cancel()
        await asyncio.gather(local, settled, hurry, progress, return_exceptions=True)
        await self._give_back(0)

    def _log_begin(self, waited_for: RunningWork) -> None:
        if not waited_for:
            logger.info("shutting down: nothing is running")
            return
        logger.info(
            "shutting down: waiting up to %g s for %s; Ctrl-C or SIGTERM again ends at once",
            self._limit_s,
            waited_for,
        )

    async def _log_progress(self, before: RunningWork) -> None:
        """Log the remaining work once an interval, if it has changed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit_s
        while True:
            await asyncio.sleep(_PROGRESS_S)
            now = self._under_way()
            if now and now != before:
                left_s = max(0.0, deadline - loop.time())
                logger.info("still waiting for %s, for up to %.0f s", now, left_s)
            before = now

    async def _settled(self, local: asyncio.Task[None]) -> None:
        await asyncio.wait({local})
        await self.state.wait_idle(self._idle)
