"""A job store in memory, with a journal that makes the jobs survive the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jobs.memory.consumer import ConsumerOperations
from jobs.memory.producer import ProducerOperations
from jobs.memory.recovery import recover_jobs
from jobs.memory.state import StoreState
from jobs.model import Job, Limits
from jobs.ports import Journal, NoJournal

logger = logging.getLogger(__name__)

# Precision of leases, time limits and retention.
TICK_S = 0.1


class MemoryJobStore(ProducerOperations, ConsumerOperations):
    """Implements `JobStore` with all jobs in memory.

    Reads never touch the disk. A change of status becomes visible only after the journal has
    written it, and until then the job cannot change in another way. A `/runsync` job whose id no
    client has received is not written at all. Leases, chunks and progress are written in the
    background: losing them repeats an attempt, but never loses a job or produces a second result.

    Owned by one event loop; not thread-safe. `on_enqueued` is called with each new job, in the task
    that enqueues it and before another task can see it. `on_started` is called with each job when
    it is leased to a worker, and `on_ended` with each job that has ended, after its end is durable.
    `on_stopped` is called with each job that a worker has and must stop: it was cancelled or timed
    out, or it is still IN_PROGRESS and past its ttl.

    The operations of clients are in `ProducerOperations`, and those of workers in
    `ConsumerOperations`; both work on the same `StoreState`. This class starts and stops the store.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        journal: Journal | None = None,
        *,
        on_enqueued: Callable[[Job], object] = lambda job: None,
        on_ended: Callable[[Job], object] = lambda job: None,
        on_started: Callable[[Job], object] = lambda job: None,
        on_stopped: Callable[[Job], object] = lambda job: None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        state = StoreState(
            limits or Limits(),
            journal or NoJournal(),
            on_enqueued=on_enqueued,
            on_ended=on_ended,
            on_started=on_started,
            on_stopped=on_stopped,
            now=now,
            monotonic=monotonic,
        )
        ProducerOperations.__init__(self, state)
        ConsumerOperations.__init__(self, state)
        self._expiry_task: asyncio.Task[None] | None = None

    # -- lifecycle ------------------------------------------------------------------------------

    async def start(
        self,
        may_have_survived: Callable[[str], bool] = lambda worker_id: False,
        lease_s: float = 30.0,
    ) -> None:
        """Recover the jobs from the journal and start to enforce leases and limits.

        A job that was in progress keeps its worker, with a new lease of `lease_s`, if
        `may_have_survived` returns True for the worker. Otherwise it waits again, which counts as
        no loss, or fails if it may run just once. Raises StoreUnavailable.
        """
        try:
            await recover_jobs(self._state, may_have_survived, lease_s)
        except BaseException:
            # Otherwise the store process would keep the database locked.
            await self._state.journal.close()
            raise
        self._expiry_task = asyncio.create_task(self._sweep_forever())

    async def close(self) -> None:
        """Stop enforcing limits, and write the remaining changes."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
            await asyncio.gather(self._expiry_task, return_exceptions=True)
        await self._state.journal.close()
        await self._state.transitions.wait_until_finished()

    async def sweep(self) -> None:
        """Handle all expired leases and limits. Raises StoreUnavailable."""
        await self._state.transitions.apply(self._process_due())

    def _process_due(self) -> list[Job]:
        return self._state.expiry.process_due(self._state.leases.reclaim)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._state.expiry.wait_until_due()
            try:
                # Not awaited: a disk that hangs must not delay the expiry of other leases.
                task = self._state.transitions.start(self._process_due())
            except Exception:
                logger.exception("the sweep for expired jobs failed; it continues")
                continue
            if task is not None:
                task.add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("jobs could not be ended in time: %s", error)
