"""The bucket of launched workers as one component of the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from common.temporary_folders import ScratchFolder
from emulator.bucket.keys import BucketKeys
from emulator.bucket.multipart import MultipartUploads
from emulator.bucket.routes import BucketRoutes
from emulator.bucket.storage import BucketStorage
from emulator.http.route_facts import ApiRoute
from emulator.settings.emulator_settings import EmulatorSettings
from jobs import StoreUnavailable

logger = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 60.0


class Bucket:
    """Starts and stops with the server; its objects survive restarts, as the jobs do.

    With `JOB_DB=:memory:` they are in a temporary folder, which is removed when the server ends.
    An object is kept for as long as the result of a job that runs for the maximum time after its
    upload.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        folder = settings.bucket_folder()
        self._scratch = None
        if folder is None:
            self._scratch = ScratchFolder()
            folder = self._scratch.path / "bucket"
        self._storage = BucketStorage(folder, int(settings.bucket_store_mb * 1e6))
        self._uploads = MultipartUploads(self._storage)
        self._retention_s = settings.result_retention_s + settings.execution_timeout_ms / 1000
        self._clock_offset_s = time.time() - time.monotonic()
        # Replaced by those in the folder when it is opened.
        self._keys = BucketKeys.generate()
        self._is_open = False
        self._task: asyncio.Task[None] | None = None
        self._routes = BucketRoutes(
            self._storage,
            self._uploads,
            lambda: self._keys,
            f"objects are removed {self._retention_s:,.0f} s after their upload (RESULT_RETENTION_S"
            " and EXECUTION_TIMEOUT_MS), and by a reset",
        )

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        return self._routes.routes()

    def worker_variables(self, url: str, others: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables by which a worker finds the bucket: see `BucketKeys`.

        The mapping is empty if the folder could not be opened.
        """
        return self._keys.worker_variables(url, others) if self._is_open else {}

    async def start(self) -> None:
        """Open the folder and start to remove old objects.

        A folder that cannot be used, on a full disk for example, does not keep the server from its
        start: its workers then get no bucket, and the log says why.
        """
        try:
            if self._scratch is not None:
                await asyncio.to_thread(self._scratch.open)
            self._keys = await asyncio.to_thread(self._storage.open)
        except (OSError, StoreUnavailable) as error:
            logger.error("the workers of this server get no bucket: %s", error)
            return
        self._is_open = True
        self._task = asyncio.create_task(self._sweep_forever())

    async def close(self) -> None:
        """Stop removing old objects; remove the temporary folder."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)

    async def clear(self) -> None:
        """Remove all objects, and the parts of incomplete uploads."""
        await self._remove_older(float("inf"))

    async def sweep(self) -> None:
        """Remove the objects and incomplete uploads whose retention is over.

        The time is that of the start plus the monotonic time since then, so that a jump of the
        system clock removes nothing too early.
        """
        now = time.monotonic() + self._clock_offset_s
        await self._remove_older(now - self._retention_s)

    async def _remove_older(self, before: float) -> None:
        await self._uploads.remove_older(before)
        for stored in self._storage.objects():
            if stored.stored_at <= before:
                await self._storage.delete(stored)

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except OSError as error:
                logger.error("old objects of the bucket could not be removed: %s", error)
            except Exception:
                logger.exception("old objects of the bucket could not be removed")
            await asyncio.sleep(_SWEEP_INTERVAL_S)
