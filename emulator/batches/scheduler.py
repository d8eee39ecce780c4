"""Starts, cancels and drains the batches that have not ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.failpoints import failpoint
from emulator.batches.context import BatchContext
from emulator.batches.executor import BatchExecutor, with_live_counts
from emulator.batches.models import StoredBatch
from emulator.batches.repository import unix_time
from jobs import StoreFull

logger = logging.getLogger(__name__)


class BatchScheduler:
    """Runs each batch in a task of its own.

    Only one batch at a time has its lines answered, the oldest first. Owned by the event loop.
    """

    def __init__(self, context: BatchContext, max_batches: int) -> None:
        self._context = context
        self._repository = context.repository
        self._max_batches = max_batches
        self._executors: dict[str, BatchExecutor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Continue the batches that an earlier server did not finish."""
        for batch in self._repository.batches:
            if not batch.status.is_final:
                # If the clock was put back, the batch must still expire within its window.
                remaining_s = max(0, batch.expires_at - unix_time())
                self._start_executor(batch, min(remaining_s, self._context.policy.window_s))

    @property
    def batches(self) -> list[StoredBatch]:
        """All batches with their current counts, the oldest first."""
        return [
            with_live_counts(batch, self._executors.get(batch.id))
            for batch in self._repository.batches
        ]

    def batch(self, batch_id: str) -> StoredBatch:
        """Return a batch with its current counts. Raises NotFound."""
        return with_live_counts(self._repository.batch(batch_id), self._executors.get(batch_id))

    async def add(self, create_batch: Callable[[], StoredBatch]) -> StoredBatch:
        """Store a new batch and start it.

        Raises:
            StoreFull: MAX_BATCHES batches have not ended.
            NotFound: its input file does not exist.
            InsufficientStorage: the disk is full.
        """
        if len(self._executors) >= self._max_batches:
            raise StoreFull(
                f"{self._max_batches} batches have not ended, the most that may (MAX_BATCHES)"
            )
        batch = create_batch()
        await self._repository.add_batch(batch)
        failpoint("batch-kept")
        self._start_executor(batch, self._context.policy.window_s)
        return batch

    async def cancel(self, batch_id: str) -> StoredBatch:
        """Write the status `cancelling` to disk, then stop answering the batch's lines.

        Raises:
            NotFound: there is no such batch.
            InvalidRequest: it has ended.
            InsufficientStorage: the disk cannot be written.
        """
        await self._repository.update_batch(batch_id, lambda batch, at: batch.cancel(at))
        failpoint("batch-cancelling")
        if (executor := self._executors.get(batch_id)) is not None:
            executor.cancel()
        return self.batch(batch_id)

    async def drain(self, limit_s: float) -> None:
        """Start no new lines and wait up to `limit_s` for the running lines.

        The next start continues the batches.
        """
        for batch_id, executor in self._executors.items():
            executor.stop()
            if not executor.is_answering:
                self._tasks[batch_id].cancel()
        if tasks := set(self._tasks.values()):
            _, unfinished = await asyncio.wait(tasks, timeout=limit_s)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)

    def _start_executor(self, batch: StoredBatch, remaining_s: float) -> None:
        executor = BatchExecutor(batch, self._context, remaining_s)
        self._executors[batch.id] = executor
        self._tasks[batch.id] = task = asyncio.create_task(executor.run())
        task.add_done_callback(lambda task: self._on_task_done(batch.id, task))

    def _on_task_done(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._executors[batch_id], self._tasks[batch_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batch %s waits for the server's next start", batch_id, exc_info=error)
