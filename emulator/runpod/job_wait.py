"""Wait for the end of a job, also while the server shuts down."""

from __future__ import annotations

import asyncio
from enum import Enum

from emulator.http.shutdown_state import ShutdownState
from jobs import Job, JobStatus, JobStore

# A wait this short does not delay the shutdown.
_SHORT_WAIT_S = 0.25


class _Cut(Enum):
    """The result of a wait that the shutdown has ended; None stands for a job that is gone."""

    CUT = "cut"


async def wait_for_end(
    store: JobStore, shutdown: ShutdownState, job_id: str, timeout_s: float
) -> Job | None:
    """Return a job when it has ended, or its current state after `timeout_s`; None without one.

    During a shutdown a client that waits for a queued job gets its current state at once. One that
    waits for a running job waits until the job ends or the drain deadline passes.
    """
    if timeout_s <= _SHORT_WAIT_S:
        return await store.wait(job_id, timeout_s)
    deadline = asyncio.get_running_loop().time() + timeout_s
    ended = await shutdown.wait_until_draining(store.wait(job_id, timeout_s), _Cut.CUT)
    if ended is not _Cut.CUT:
        return ended
    job = await store.get(job_id)
    if job is None or job.status is not JobStatus.IN_PROGRESS:
        return job
    left_s = max(0.0, deadline - asyncio.get_running_loop().time())
    ended = await shutdown.wait_until_deadline(store.wait(job_id, left_s), _Cut.CUT)
    return await store.get(job_id) if ended is _Cut.CUT else ended
