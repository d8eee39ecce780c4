"""`/v1/files`: what batches are made of, and what they leave."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from emulator.batches.file import INPUT, PREFIX, StoredFile
from emulator.batches.pagination import PageQuery
from emulator.batches.repository import BatchStore, now
from emulator.batches.upload import Uploads
from emulator.http.responses import JSON

# OpenAI's default and most, which are the same.
_MOST_LISTED = 10_000
_BYTES = "application/octet-stream"


class FileRoutes:
    """Turns HTTP calls into changes of the store; holds nothing between them.

    `kept_s` is for how long an upload is kept whose sender does not say.
    """

    def __init__(self, store: BatchStore, uploads: Uploads, kept_s: float) -> None:
        self._store = store
        self._uploads = uploads
        self._kept_s = kept_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route("/v1/files", self._create, methods=["POST"]),
            Route("/v1/files", self._list, methods=["GET"]),
            Route("/v1/files/{file_id}", self._show, methods=["GET"]),
            Route("/v1/files/{file_id}", self._delete, methods=["DELETE"]),
            Route("/v1/files/{file_id}/content", self._content, methods=["GET"]),
        ]

    async def _create(self, request: Request) -> Response:
        store = self._store
        async with self._uploads.receive(request) as upload:
            made = now()
            kept_s = int(self._kept_s) if upload.expires_s is None else upload.expires_s
            file = StoredFile(
                id=store.new_id(PREFIX),
                bytes=upload.size,
                created_at=made,
                filename=upload.filename,
                purpose=INPUT,
                expires_at=made + kept_s,
            )
            await store.add_upload(file, upload.path, upload.room)
        return JSON(file.shown())

    async def _list(self, request: Request) -> Response:
        query = PageQuery.read(request, _MOST_LISTED, _MOST_LISTED)
        purpose = request.query_params.get("purpose")
        found = [each for each in self._store.files if purpose in (None, each.purpose)]
        return JSON(query.page(found))

    async def _show(self, request: Request) -> Response:
        return JSON(self._store.file(request.path_params["file_id"]).shown())

    async def _content(self, request: Request) -> Response:
        file = self._store.file(request.path_params["file_id"])
        return FileResponse(
            self._store.folder.bytes_of(file.id), media_type=_BYTES, filename=file.filename
        )

    async def _delete(self, request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await self._store.remove_file(file_id)
        return JSON({"id": file_id, "object": "file", "deleted": True})
