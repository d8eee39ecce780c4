"""Files and batches as one part of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batch.line_executor import LineExecutor
from emulator.batches.batch import StoredBatch
from emulator.batches.batch_routes import BatchRoutes
from emulator.batches.context import Means, Terms
from emulator.batches.file_routes import FileRoutes
from emulator.batches.file_storage import Folder
from emulator.batches.input_validation import LineLimits
from emulator.batches.repository import BatchStore
from emulator.batches.retention import Sweeper
from emulator.batches.scheduler import Works
from emulator.batches.upload import Uploads
from emulator.http.responses import error_response
from emulator.settings import EmulatorSettings
from engine import AnyEngine, Priority
from engine.temporary_folders import ScratchFolder
from handler.composition import Services
from handler.errors import ErrorInfo, ErrorMapping
from jobs import StoreUnavailable

_NO_ROOM = ErrorMapping(507, "insufficient_storage_error", retryable=True)


class BatchPlane:
    """Starts and ends with the server; what it keeps outlives both.

    Without a folder all is kept in a temporary one, which goes with the server.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        doors: Services,
        engine: AnyEngine,
        on_line: Callable[[bool], object] = lambda ok: None,
    ) -> None:
        path = settings.batch_folder()
        self._scratch = None
        if path is None:
            self._scratch = ScratchFolder()
            path = self._scratch.path / "batches"
        folder = Folder(path)
        limits = LineLimits(settings.batch_max_lines, int(settings.max_body_mb * 1e6))
        kept_s = settings.batch_retention_s
        self._store = BatchStore(folder, int(settings.batch_store_mb * 1e6))
        terms = Terms(
            limits=limits,
            share=settings.batch_share,
            tries=settings.batch_tries,
            window_s=settings.batch_window_s,
            kept_s=kept_s,
        )
        answerer = LineExecutor(doors, engine, Priority.BATCH)
        means = Means(self._store, answerer, engine, terms, asyncio.Lock(), on_line)
        self._works = Works(means, settings.max_batches)
        self._sweeper = Sweeper(self._store, kept_s)
        uploads = Uploads(self._store, int(settings.batch_max_mb * 1e6), limits)
        self._routes = [
            *FileRoutes(self._store, uploads, kept_s).routes(),
            *BatchRoutes(
                self._store, self._works, settings.served_model, settings.batch_window_s
            ).routes(),
        ]

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return self._routes

    def batches(self) -> list[StoredBatch]:
        """Return all batches there are."""
        return self._store.batches

    def set_aside(self) -> list[str]:
        """Return the ids of files and batches whose records are damaged."""
        return self._store.folder.set_aside

    async def start(self) -> None:
        """Open the folder and continue its batches. Raises StoreUnavailable."""
        if self._scratch is not None:
            try:
                await asyncio.to_thread(self._scratch.open)
            except OSError as error:
                raise StoreUnavailable(f"no folder for batches: {error}") from None
        await self._store.open()
        self._works.start()
        self._sweeper.start()

    async def drain(self, limit_s: float) -> None:
        """Begin no more lines, and wait for those under way for so long."""
        await self._works.drain(limit_s)

    async def close(self) -> None:
        """Let go of the folder; nothing is under way any more."""
        await self._works.drain(0)
        await self._sweeper.close()
        self._store.close()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)


async def on_no_room(request: Request, error: Exception) -> Response:
    """Answer a call for which there is no room on the disk."""
    return error_response(ErrorInfo(str(error), _NO_ROOM))
