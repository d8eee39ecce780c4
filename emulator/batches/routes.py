"""The routes of OpenAI's Batch API: `/v1/files` and `/v1/batches`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from emulator.batches.models import (
    BATCH_ID_PREFIX,
    FILE_ID_PREFIX,
    INPUT_PURPOSE,
    StoredBatch,
    StoredFile,
)
from emulator.batches.parameters import PageQuery, read_new_batch
from emulator.batches.repository import BatchRepository, unix_time
from emulator.batches.scheduler import BatchScheduler
from emulator.batches.upload import UploadReceiver
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.route_facts import (
    ApiRoute,
    OperationName,
    RouteFacts,
    RouteHandler,
    openai_facts,
)
from handler.errors import InvalidRequest

_FILES = openai_facts(OperationName.FILES)
_BATCHES = openai_facts(OperationName.BATCHES)
# The only POST request of the OpenAI API that starts no work.
_CANCEL = openai_facts(OperationName.BATCHES, rate_limit=None, starts_work=False)
_DEFAULT_BATCH_PAGE_SIZE, _MAX_BATCH_PAGE_SIZE = 20, 100
# OpenAI's default page size of files, which is also the maximum.
_MAX_FILE_PAGE_SIZE = 10_000
_MAX_BODY_BYTES = 100_000


class BatchRoutes:
    """The `/v1/batches` routes; batches use `model` and expire after `window_s`."""

    def __init__(
        self, repository: BatchRepository, scheduler: BatchScheduler, model: str, window_s: float
    ) -> None:
        self._repository = repository
        self._scheduler = scheduler
        self._model = model
        self._window_s = window_s

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, str, RouteHandler, RouteFacts]] = [
            ("POST", "/v1/batches", self._create, _BATCHES),
            ("GET", "/v1/batches", self._list, _BATCHES),
            ("GET", "/v1/batches/{batch_id}", self._retrieve, _BATCHES),
            ("POST", "/v1/batches/{batch_id}/cancel", self._cancel, _CANCEL),
        ]
        return [
            ApiRoute(path, handler, methods=[method], facts=facts)
            for method, path, handler, facts in table
        ]

    async def _create(self, request: Request) -> Response:
        body = await read_json(request, _MAX_BODY_BYTES)
        fields, endpoint, expires_s = read_new_batch(body)
        file = self._repository.file(fields.input_file_id, "input_file_id")
        if file.purpose != INPUT_PURPOSE:
            raise InvalidRequest(
                f"input_file_id must name a file with the purpose {INPUT_PURPOSE}, "
                f"got {file.purpose}",
                "input_file_id",
            )

        def create_batch() -> StoredBatch:
            created_at = unix_time()
            return StoredBatch(
                id=self._repository.new_id(BATCH_ID_PREFIX),
                endpoint=endpoint,
                input_file_id=file.id,
                created_at=created_at,
                expires_at=created_at + int(self._window_s),
                model=self._model,
                metadata=fields.metadata,
                output_expires_s=expires_s,
            )

        return JSON((await self._scheduler.add(create_batch)).to_openai())

    async def _list(self, request: Request) -> Response:
        query = PageQuery.read(request, _DEFAULT_BATCH_PAGE_SIZE, _MAX_BATCH_PAGE_SIZE)
        return JSON(query.build_page(self._scheduler.batches))

    async def _retrieve(self, request: Request) -> Response:
        return JSON(self._scheduler.batch(request.path_params["batch_id"]).to_openai())

    async def _cancel(self, request: Request) -> Response:
        return JSON((await self._scheduler.cancel(request.path_params["batch_id"])).to_openai())


class FileRoutes:
    """The `/v1/files` routes; an upload without `expires_after` expires after `retention_s`."""

    def __init__(
        self, repository: BatchRepository, receiver: UploadReceiver, retention_s: float
    ) -> None:
        self._repository = repository
        self._receiver = receiver
        self._retention_s = retention_s

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, str, RouteHandler]] = [
            ("POST", "/v1/files", self._create),
            ("GET", "/v1/files", self._list),
            ("GET", "/v1/files/{file_id}", self._retrieve),
            ("DELETE", "/v1/files/{file_id}", self._delete),
            ("GET", "/v1/files/{file_id}/content", self._download),
        ]
        return [
            ApiRoute(path, handler, methods=[method], facts=_FILES)
            for method, path, handler in table
        ]

    async def _create(self, request: Request) -> Response:
        async with self._receiver.receive(request) as upload:
            created_at = unix_time()
            expires_s = int(self._retention_s) if upload.expires_s is None else upload.expires_s
            file = StoredFile(
                id=self._repository.new_id(FILE_ID_PREFIX),
                bytes=upload.size,
                created_at=created_at,
                filename=upload.filename,
                purpose=INPUT_PURPOSE,
                expires_at=created_at + expires_s,
            )
            await self._repository.add_upload(file, upload.path, upload.reservation)
        return JSON(file.to_openai())

    async def _list(self, request: Request) -> Response:
        query = PageQuery.read(request, _MAX_FILE_PAGE_SIZE, _MAX_FILE_PAGE_SIZE)
        purpose = request.query_params.get("purpose")
        files = [file for file in self._repository.files if purpose in (None, file.purpose)]
        return JSON(query.build_page(files))

    async def _retrieve(self, request: Request) -> Response:
        return JSON(self._repository.file(request.path_params["file_id"]).to_openai())

    async def _download(self, request: Request) -> Response:
        file = self._repository.file(request.path_params["file_id"])
        return FileResponse(
            self._repository.storage.content_path(file.id),
            media_type="application/octet-stream",
            filename=file.filename,
        )

    async def _delete(self, request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await self._repository.delete_file(file_id)
        return JSON({"id": file_id, "object": "file", "deleted": True})
