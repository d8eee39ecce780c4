"""OpenAI files and batches as one component of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from batch.line_executor import LineExecutor
from common.temporary_folders import ScratchFolder
from emulator.batches.context import BatchContext, BatchPolicy
from emulator.batches.file_storage import FileStorage
from emulator.batches.input_validation import LineLimits
from emulator.batches.models import StoredBatch
from emulator.batches.repository import BatchRepository
from emulator.batches.retention import RetentionSweeper
from emulator.batches.routes import BatchRoutes, FileRoutes
from emulator.batches.scheduler import BatchScheduler
from emulator.batches.upload import UploadReceiver
from emulator.http.responses import error_response
from emulator.http.route_facts import ApiRoute
from emulator.settings.emulator_settings import EmulatorSettings
from engine import AnyEngine, Priority
from handler.composition import Services
from handler.errors import ErrorInfo, ErrorMapping
from jobs import StoreUnavailable

_INSUFFICIENT_STORAGE = ErrorMapping(507, "insufficient_storage_error", retryable=True)


class BatchService:
    """Starts and stops with the server; its files and batches survive restarts.

    Without BATCH_DIR they are in a temporary folder, which is removed when the server ends.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        services: Services,
        engine: AnyEngine,
        on_line: Callable[[bool], object] = lambda ok: None,
    ) -> None:
        path = settings.batch_folder()
        self._scratch = None
        if path is None:
            self._scratch = ScratchFolder()
            path = self._scratch.path / "batches"
        limits = LineLimits(settings.batch_max_lines, int(settings.max_body_mb * 1e6))
        retention_s, window_s = settings.batch_retention_s, settings.batch_window_s
        self._repository = BatchRepository(FileStorage(path), int(settings.batch_store_mb * 1e6))
        context = BatchContext(
            self._repository,
            LineExecutor(services, engine, Priority.BATCH),
            engine,
            BatchPolicy(
                limits=limits,
                share=settings.batch_share,
                max_attempts=settings.batch_tries,
                window_s=window_s,
                retention_s=retention_s,
            ),
            asyncio.Lock(),
            on_line,
        )
        self._scheduler = BatchScheduler(context, settings.max_batches)
        self._sweeper = RetentionSweeper(self._repository, retention_s)
        receiver = UploadReceiver(self._repository, int(settings.batch_max_mb * 1e6), limits)
        files = FileRoutes(self._repository, receiver, retention_s)
        batches = BatchRoutes(self._repository, self._scheduler, settings.served_model, window_s)
        self._routes = [*files.routes(), *batches.routes()]

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        return self._routes

    def batches(self) -> list[StoredBatch]:
        """Return all batches."""
        return self._repository.batches

    def damaged_ids(self) -> list[str]:
        """Return the ids of files and batches whose records are damaged."""
        return self._repository.storage.damaged_ids

    async def start(self) -> None:
        """Open the folder and continue its batches. Raises StoreUnavailable."""
        if self._scratch is not None:
            try:
                await asyncio.to_thread(self._scratch.open)
            except OSError as error:
                raise StoreUnavailable(f"no folder for batches: {error}") from None
        await self._repository.open()
        self._scheduler.start()
        self._sweeper.start()

    async def drain(self, limit_s: float) -> None:
        """Start no new lines and wait up to `limit_s` for the running lines."""
        await self._scheduler.drain(limit_s)

    async def close(self) -> None:
        """Stop the batches that still run, and release the folder."""
        await self._scheduler.drain(0)
        await self._sweeper.close()
        self._repository.close()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)


async def handle_insufficient_storage(request: Request, error: Exception) -> Response:
    """Return the 507 response to a request that the disk has no space for."""
    return error_response(ErrorInfo(str(error), _INSUFFICIENT_STORAGE), request.scope)
