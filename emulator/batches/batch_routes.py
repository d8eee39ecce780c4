"""`/v1/batches`: files of requests, answered beside everything else."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.batches.batch import PREFIX, StoredBatch
from emulator.batches.batch_request import read_new_batch
from emulator.batches.file import INPUT
from emulator.batches.pagination import PageQuery
from emulator.batches.repository import BatchStore, now
from emulator.batches.scheduler import Works
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from handler.errors import InvalidRequest

_LISTED, _MOST_LISTED = 20, 100
_MOST_BODY_BYTES = 100_000


class BatchRoutes:
    """Turns HTTP calls into work; holds nothing between them."""

    def __init__(self, store: BatchStore, works: Works, model: str, window_s: float) -> None:
        self._store = store
        self._works = works
        self._model = model
        self._window_s = window_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route("/v1/batches", self._create, methods=["POST"]),
            Route("/v1/batches", self._list, methods=["GET"]),
            Route("/v1/batches/{batch_id}", self._show, methods=["GET"]),
            Route("/v1/batches/{batch_id}/cancel", self._cancel, methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response:
        body = await read_json(request, _MOST_BODY_BYTES)
        given, endpoint, expires_s = read_new_batch(body)
        file = self._store.file(given.input_file_id, "input_file_id")
        if file.purpose != INPUT:
            raise InvalidRequest(
                f"input_file_id must name a file with the purpose {INPUT}, got {file.purpose}",
                "input_file_id",
            )

        def make() -> StoredBatch:
            made = now()
            return StoredBatch(
                id=self._store.new_id(PREFIX),
                endpoint=endpoint,
                input_file_id=file.id,
                created_at=made,
                expires_at=made + int(self._window_s),
                model=self._model,
                metadata=given.metadata,
                output_expires_s=expires_s,
            )

        return JSON((await self._works.add(make)).shown())

    async def _list(self, request: Request) -> Response:
        query = PageQuery.read(request, _LISTED, _MOST_LISTED)
        return JSON(query.page(self._works.batches))

    async def _show(self, request: Request) -> Response:
        return JSON(self._works.batch(request.path_params["batch_id"]).shown())

    async def _cancel(self, request: Request) -> Response:
        return JSON((await self._works.cancel(request.path_params["batch_id"])).shown())
