"""Wait for running work during a shutdown, for a limited time, and log it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from emulator.http.shutdown_state import ShutdownState

logger = logging.getLogger(__name__)

# The interval at which changes of the running work are logged.
_PROGRESS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class RunningWork:
    """The running work: jobs on any worker, requests that the engine answers directly, batches."""

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
            f"{count:,} {singular if count == 1 else plural}"
            for count, singular, plural in counts
            if count
        ]
        *rest, last = phrases or ["nothing"]
        return f"{', '.join(rest)} and {last}" if rest else last

    def __bool__(self) -> bool:
        return bool(self.jobs or self.requests or self.batches)


class GracefulShutdown:
    """Waits until running work ends, `limit_s` has passed, or `force` is set (a second signal).

    `wait_for_jobs` returns when no job runs on any worker. `drain_workers` stops the local and the
    managed workers from taking jobs, waits up to that many seconds for the jobs they run, and
    returns the rest to the queue. Jobs on other workers keep their leases, which outlive the
    server. `count_running` counts the running work for the log.
    """

    def __init__(
        self,
        shutdown: ShutdownState,
        limit_s: float,
        wait_for_jobs: Callable[[], Awaitable[None]],
        drain_workers: Callable[[float], Coroutine[Any, Any, None]],
        count_running: Callable[[], RunningWork] = RunningWork,
    ) -> None:
        self.state = shutdown
        self._limit_s = limit_s
        self._wait_for_jobs = wait_for_jobs
        self._drain_workers = drain_workers
        self._count_running = count_running
        # Set by a second signal: do not wait any longer.
        self.force = asyncio.Event()
        # Set by the first signal, or by `fail`.
        self.requested = asyncio.Event()
        # The reason for an exit code other than 0.
        self.failure: str | None = None

    def fail(self, reason: str) -> None:
        """Shut down because the server cannot do its work any more; it exits with code 1."""
        logger.error("the server ends with exit code 1: %s", reason)
        self.failure = reason
        self.requested.set()

    async def wait(self) -> None:
        """Drain: wait for running work, then set `deadline_passed` and return jobs to the queue."""
        self.state.start_draining()
        running = self._count_running()
        self._log_start(running)
        workers = asyncio.create_task(self._drain_workers(self._limit_s))
        idle = asyncio.create_task(self._wait_idle(workers))
        force = asyncio.create_task(self.force.wait())
        progress = asyncio.create_task(self._log_progress(running))
        await asyncio.wait(
            {idle, force}, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (idle, force, progress):
            task.cancel()
        if not idle.done():
            why = "second signal" if self.force.is_set() else f"{self._limit_s:g} s (DRAIN_S) over"
            logger.warning(
                "%s: ending %s that had not finished; jobs go back to the queue",
                why,
                self._count_running(),
            )
        elif running:
            logger.info("everything that was running has finished")
        self.state.pass_deadline()
        workers.cancel()
        await asyncio.gather(workers, idle, force, progress, return_exceptions=True)
        await self._drain_workers(0)

    def _log_start(self, running: RunningWork) -> None:
        if not running:
            logger.info("shutting down: nothing is running")
            return
        logger.info(
            "shutting down: waiting up to %g s for %s; Ctrl-C or SIGTERM again ends at once",
            self._limit_s,
            running,
        )

    async def _log_progress(self, last: RunningWork) -> None:
        """Log the remaining work at each interval, if it has changed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit_s
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL_S)
            current = self._count_running()
            if current and current != last:
                remaining_s = max(0.0, deadline - loop.time())
                logger.info("still waiting for %s, for up to %.0f s", current, remaining_s)
            last = current

    async def _wait_idle(self, workers: asyncio.Task[None]) -> None:
        await asyncio.wait({workers})
        await self.state.wait_idle(self._wait_for_jobs)
