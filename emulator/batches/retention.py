"""Forgetting files and batches whose time is over."""

from __future__ import annotations

import asyncio
import logging
import time

from emulator.batches.file_storage import NoRoom
from emulator.batches.repository import BatchStore

logger = logging.getLogger(__name__)

_EVERY_S = 60.0


class Sweeper:
    """Looks once a minute, on a task of its own.

    The time is that of the start and what has passed since: a clock that jumps forward while the
    server runs must not take everybody's files along.
    """

    def __init__(self, store: BatchStore, kept_s: float, every_s: float = _EVERY_S) -> None:
        self._store = store
        self._kept_s = kept_s
        self._every_s = every_s
        self._ahead_s = time.time() - time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._sweep_forever())

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def sweep(self) -> None:
        """Forget what nobody needs any more. Raises NoRoom."""
        store, at = self._store, time.monotonic() + self._ahead_s
        for file in store.files:
            expired = file.expires_at is not None and file.expires_at <= at
            if expired and store.user_of(file.id) is None:
                await store.remove_file(file.id)
        for batch in store.batches:
            if batch.status.final and batch.changed_at + self._kept_s <= at:
                await store.forget_batch(batch.id)

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except NoRoom as error:
                logger.error("what has expired could not be removed: %s", error)
            except Exception:
                logger.exception("what has expired could not be removed")
            await asyncio.sleep(self._every_s)
