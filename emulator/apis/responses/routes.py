"""The routes of `/v1/responses`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.value_description import describe_value
from emulator.apis.responses.background import (
    BackgroundResponses,
    encode_response,
    read_starting_after,
)
from emulator.http.disconnect import while_connected
from emulator.http.opening import open_stream
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from handler.apis.openai.events import DONE, error_event
from handler.apis.responses.service import ResponsesService
from handler.errors import InvalidRequest
from handler.input.request import read_flag
from jobs import Job

PATH = "/v1/responses"
MAX_PAGE_ITEMS = 100
_CLOSING_EVENT = error_event(SHUTTING_DOWN_ERROR) + DONE
_MEDIA_TYPE = "application/json"


class ResponsesRoutes:
    """Answers HTTP requests with the responses service; has no state between requests."""

    def __init__(
        self,
        service: ResponsesService,
        background: BackgroundResponses,
        max_body_bytes: int,
        interval_s: float,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._background = background
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        one = f"{PATH}/{{response_id}}"
        return [
            Route(PATH, self._create, methods=["POST"]),
            Route(one, self._get, methods=["GET"]),
            Route(one, self._delete, methods=["DELETE"]),
            Route(f"{one}/input_items", self._list_input_items, methods=["GET"]),
            Route(f"{one}/cancel", self._cancel, methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        if read_flag(body, "background", default=False):
            job = await self._background.create(body)
            # For the request's log line.
            request.path_params["job_id"] = job.id
            return self._stream_job(job) if body.get("stream") else JSON(encode_response(job))
        call = await self._service.parse(body)
        if not call.streaming:
            return JSON(await while_connected(request.receive, self._service.complete(call)))
        return await open_stream(
            request.receive,
            self._service.open_stream(call),
            stream=lambda opened: self._service.stream_events(call, opened, self._interval_s),
            abort=lambda opened: opened.abort(),
            error_event=lambda failure: error_event(failure) + DONE,
            keep_alive_s=self._keep_alive_s,
        )

    def _stream_job(self, job: Job, after: int = -1) -> SSEResponse:
        # The job goes on when its reader disconnects.
        return SSEResponse(
            self._background.stream(job, after), lambda: None, _CLOSING_EVENT, self._keep_alive_s
        )

    async def _get(self, request: Request) -> Response | SSEResponse:
        response_id = request.path_params["response_id"]
        if request.query_params.get("stream") == "true" and request.method == "GET":
            after = read_starting_after(request.query_params.get("starting_after"))
            return self._stream_job(await self._background.get_job(response_id), after)
        response = await self._service.get(response_id)
        return Response(response, media_type=_MEDIA_TYPE)

    async def _delete(self, request: Request) -> Response:
        return JSON(await self._service.delete(request.path_params["response_id"]))

    async def _cancel(self, request: Request) -> Response:
        return JSON(await self._background.cancel(request.path_params["response_id"]))

    async def _list_input_items(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", "20")
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_PAGE_ITEMS:
            raise InvalidRequest(
                f"limit must be from 1 to {MAX_PAGE_ITEMS}, got {describe_value(limit)}", "limit"
            )
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(
                f'order must be "asc" or "desc", got {describe_value(order)}', "order"
            )
        page = await self._service.list_input_items(
            request.path_params["response_id"],
            limit=int(limit),
            order=order,
            after=query.get("after"),
        )
        return JSON(page)
