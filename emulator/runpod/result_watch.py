"""Ends a job whose result its worker cannot send, by what the worker prints about it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from emulator.runpod.job_response import worker_key, worker_name
from emulator.runpod.sdk_log_line import parse_sdk_line
from jobs import Job, JobStore, StoreUnavailable

logger = logging.getLogger(__name__)

# How the SDK (1.6 to 2.0) reports a result, a chunk or a progress update that it could not send:
# the value is no JSON, or the server has not answered or refused it.
_UNSENT = re.compile(
    r"(?:\[batchId=[^]]*\] )?(?:Error while returning job result|Failed to return job results)\. "
    r"\| (.*)",
    re.DOTALL,
)
# What it prints after a result, whether it was sent or not, and not after the others.
_FINISHED = re.compile(r"(?:\[batchId=[^]]*\] )?Finished\.")
# How those lines begin, because a handler may print thousands of lines a second.
_HINTS = ("Error while returning", "Failed to return", "Finished.")
_MAX_REASONS = 1_000
_MAX_REASON_CHARS = 1_000


class ResultWatch:
    """Reads the lines of launched workers, and fails the jobs whose results cannot come any more.

    The SDK only prints that a result is no JSON, and asks for its next job. Nothing else would say
    why the job has no result, and a second run would have the same end. Owned by the event loop.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        # Waits until all lines that a worker of an endpoint has printed so far were read.
        self.catch_up: Callable[[str, str], Awaitable[None]] | None = None
        # Why something of a running job was not sent; the oldest are dropped.
        self._reasons: dict[tuple[str, str], str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def read_line(self, endpoint: str, worker: str, text: str) -> None:
        """Read one line that a worker has printed."""
        if not any(hint in text for hint in _HINTS):
            return
        message, _, job_id = parse_sdk_line(text)
        if job_id is None:
            return
        key = (worker_key(endpoint, worker), job_id)
        if (unsent := _UNSENT.fullmatch(message)) is not None:
            while len(self._reasons) >= _MAX_REASONS:
                del self._reasons[next(iter(self._reasons))]
            self._reasons[key] = unsent[1][:_MAX_REASON_CHARS]
        elif _FINISHED.fullmatch(message):
            task = asyncio.create_task(self._end(*key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def read_output(self, job: Job) -> None:
        """Read what the worker has printed so far, which its result may have overtaken."""
        if self.catch_up is not None:
            await self.catch_up(job.endpoint, worker_name(job.worker_id or ""))

    def take_reason(self, job: Job) -> str | None:
        """Return why something of a job was not sent, and forget it; None if nothing is known."""
        return self._reasons.pop((job.worker_id or "", job.id), None)

    async def close(self) -> None:
        """Wait until the jobs have ended that are being ended."""
        await asyncio.gather(*self._tasks)

    async def _end(self, worker: str, job_id: str) -> None:
        """Fail a job that its worker has finished without a result."""
        reason = self._reasons.pop((worker, job_id), "the worker has not said why")
        job = await self._store.get(job_id)
        # The worker prints this after the answer to its result.
        if job is None or job.status.is_final or job.worker_id != worker:
            return
        error = f"the job's result could not be sent: {reason}"
        try:
            await self._store.ack(job.id, job.attempt, error=error)
        except StoreUnavailable as unavailable:
            logger.warning("job %s has no result, and could not be ended: %s", job_id, unavailable)
