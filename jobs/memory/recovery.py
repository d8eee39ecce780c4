"""Recovery of a store's jobs from its journal at startup."""

from __future__ import annotations

import logging
from collections.abc import Callable

from common.failpoints import failpoint
from jobs.errors import StoreUnavailable
from jobs.memory.job_record import JobRecord
from jobs.memory.state import StoreState
from jobs.model import Job, JobStatus
from jobs.ports import SavedJob

logger = logging.getLogger(__name__)


async def recover_jobs(
    state: StoreState, may_have_survived: Callable[[str], bool], lease_s: float
) -> None:
    """Load the jobs of the journal.

    A job in progress gets a new lease of `lease_s` if `may_have_survived` returns True for its
    worker. Otherwise it waits again. That does not count as a loss, because the job has not ended
    its worker: a server that is killed often would otherwise fail the jobs that wait longest. Only
    if a job may run just once (`max_losses` is 1), it fails. `on_ended` is called for ended jobs
    whose webhook was not sent. Raises StoreUnavailable.
    """
    reason = "the server was stopped" if state.limits.max_losses == 1 else None
    failed: list[Job] = []
    webhook_not_sent: list[Job] = []
    saved_jobs = await state.journal.load()
    failpoint("recovering")
    for saved in saved_jobs:
        record = _restore(state, saved)
        job = record.job
        if job.status is JobStatus.IN_QUEUE:
            state.table.get_or_create_endpoint(job.endpoint).queue.push(job)
        elif job.status is JobStatus.IN_PROGRESS:
            state.expiry.start_lease(record, lease_s)
            if not may_have_survived(job.worker_id or ""):
                failed += state.leases.requeue_or_fail(record, reason)
        elif job.webhook and not job.webhook_sent:
            webhook_not_sent.append(job)
    try:
        await state.transitions.apply(failed)
    except StoreUnavailable as error:
        # A full disk must not prevent the other jobs from being served. The failed jobs keep the
        # leases that they got above, and end when those expire.
        logger.error("%d lost jobs could not be ended yet: %s", len(failed), error)
    failpoint("recovered")
    for job in webhook_not_sent:
        state.on_ended(job)


def _restore(state: StoreState, saved: SavedJob) -> JobRecord:
    job = saved.job
    record = JobRecord(job)
    if job.status is not JobStatus.IN_QUEUE:
        record.restore_stream([chunk for chunk in saved.chunks if chunk.attempt == job.attempt])
    state.table.add(record)
    state.expiry.schedule_ttl(job)
    if job.status.is_final:
        state.expiry.schedule_retention(job)
    return record
