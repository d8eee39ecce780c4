"""Deletes files and batches whose retention is over."""

from __future__ import annotations

import asyncio
import logging
import time

from emulator.batches.file_storage import InsufficientStorage
from emulator.batches.repository import BatchRepository

logger = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 60.0


class RetentionSweeper:
    """Deletes expired files and batches once a minute, in a task of its own.

    The time is that of the start plus the monotonic time since then: if the system clock jumps
    forward while the server runs, no file may be deleted too early.
    """

    def __init__(
        self,
        repository: BatchRepository,
        retention_s: float,
        interval_s: float = _SWEEP_INTERVAL_S,
    ) -> None:
        self._repository = repository
        self._retention_s = retention_s
        self._interval_s = interval_s
        self._clock_offset_s = time.time() - time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sweeping."""
        self._task = asyncio.create_task(self._sweep_forever())

    async def close(self) -> None:
        """Stop sweeping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def sweep(self) -> None:
        """Delete expired files that no batch needs, and expired batches.

        Raises InsufficientStorage.
        """
        repository, now = self._repository, time.monotonic() + self._clock_offset_s
        for file in repository.files:
            is_expired = file.expires_at is not None and file.expires_at <= now
            if is_expired and repository.find_batch_using(file.id) is None:
                await repository.delete_file(file.id)
        for batch in repository.batches:
            if batch.status.is_final and batch.changed_at + self._retention_s <= now:
                await repository.delete_batch(batch.id)

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except InsufficientStorage as error:
                logger.error("expired files and batches could not be removed: %s", error)
            except Exception:
                logger.exception("expired files and batches could not be removed")
            await asyncio.sleep(self._interval_s)
