"""All batches that have not ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from emulator.batches.batch import StoredBatch
from emulator.batches.context import Means
from emulator.batches.executor import Work, current
from emulator.batches.repository import BatchStore, now
from jobs import StoreFull
from jobs.failpoints import failpoint

logger = logging.getLogger(__name__)


class Works:
    """Begins, cancels and ends work on batches, a task for each.

    One at a time has its lines answered, the oldest first. Owned by the event loop.
    """

    def __init__(self, means: Means, most: int) -> None:
        self._means = means
        self._store: BatchStore = means.store
        self._most = most
        self._works: dict[str, Work] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Go on with what an earlier server has left."""
        for batch in self._store.batches:
            if not batch.status.final:
                # A clock that was put back must not make it live for ever.
                left_s = min(max(0, batch.expires_at - now()), self._means.terms.window_s)
                self._begin(batch, left_s)

    @property
    def batches(self) -> list[StoredBatch]:
        """All batches as they are now, the oldest first."""
        return [current(each, self._works.get(each.id)) for each in self._store.batches]

    def batch(self, batch_id: str) -> StoredBatch:
        """Return a batch as it is now. Raises NotFound."""
        return current(self._store.batch(batch_id), self._works.get(batch_id))

    async def add(self, make: Callable[[], StoredBatch]) -> StoredBatch:
        """Keep a new batch and begin with it.

        Raises:
            StoreFull: as many as may be are waiting (MAX_BATCHES).
            NotFound: its input is not there.
            NoRoom: the disk does not take it.
        """
        if len(self._works) >= self._most:
            raise StoreFull(f"{self._most} batches have not ended, the most that may (MAX_BATCHES)")
        batch = make()
        await self._store.add_batch(batch)
        failpoint("batch-kept")
        self._begin(batch, self._means.terms.window_s)
        return batch

    async def cancel(self, batch_id: str) -> StoredBatch:
        """Have a batch be cancelled, on disk before anything else.

        Raises:
            NotFound: there is none.
            InvalidRequest: it has ended.
            NoRoom: the disk cannot be written.
        """
        await self._store.change(batch_id, lambda batch, at: batch.cancel(at))
        failpoint("batch-cancelling")
        if (work := self._works.get(batch_id)) is not None:
            work.cancel()
        return self.batch(batch_id)

    async def drain(self, limit_s: float) -> None:
        """Begin no more lines, and wait for those under way; batches go on at the next start."""
        for batch_id, work in self._works.items():
            work.stop()
            if not work.answering:
                self._tasks[batch_id].cancel()
        if tasks := set(self._tasks.values()):
            _, late = await asyncio.wait(tasks, timeout=limit_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _begin(self, batch: StoredBatch, left_s: float) -> None:
        work = Work(batch, self._means, left_s)
        self._works[batch.id] = work
        self._tasks[batch.id] = task = asyncio.create_task(work.run())
        task.add_done_callback(lambda task: self._over(batch.id, task))

    def _over(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._works[batch_id], self._tasks[batch_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batch %s waits for the server's next start", batch_id, exc_info=error)
