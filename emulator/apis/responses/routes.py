"""The routes of `/v1/responses`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from common.value_description import describe_value
from emulator.apis.responses.background import (
    BackgroundResponses,
    encode_reader_end,
    encode_response,
    read_starting_after,
)
from emulator.http.call_answers import CallAnswers
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, RouteHandler, openai_facts
from emulator.http.sse import SSEResponse
from handler.apis.responses.api import INPUT_TOKENS, RESPONSES, ResponsesApi
from handler.apis.responses.wire_format import FORMAT
from handler.errors import InvalidRequest
from handler.input.request import read_flag
from jobs import Job

MAX_PAGE_ITEMS = 100
_MEDIA_TYPE = "application/json"


RESPONSES_FACTS = openai_facts(OperationName.RESPONSES, wire_format=FORMAT)


class ResponsesRoutes:
    """Answers HTTP requests with the Responses API; has no state between requests."""

    def __init__(
        self,
        api: ResponsesApi,
        background: BackgroundResponses,
        answers: CallAnswers,
    ) -> None:
        self._api = api
        self._background = background
        self._answers = answers

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        one = f"{RESPONSES}/{{response_id}}"
        table: list[tuple[str, str, RouteHandler]] = [
            ("POST", RESPONSES, self._create),
            ("POST", INPUT_TOKENS, self._count_input_tokens),
            ("GET", one, self._get),
            ("DELETE", one, self._delete),
            ("GET", f"{one}/input_items", self._list_input_items),
            ("POST", f"{one}/cancel", self._cancel),
        ]
        return [
            ApiRoute(path, handler, methods=[method], facts=RESPONSES_FACTS)
            for method, path, handler in table
        ]

    async def _create(self, request: Request) -> Response | SSEResponse:
        body = await self._answers.read_body(request)
        if read_flag(body, "background", default=False):
            job = await self._background.create(body)
            # For the request's log line.
            request.path_params["job_id"] = job.id
            return self._stream_job(job) if body.get("stream") else JSON(encode_response(job))
        return await self._answers.answer(request, self._api, RESPONSES, body)

    async def _count_input_tokens(self, request: Request) -> Response | SSEResponse:
        body = await self._answers.read_body(request)
        return await self._answers.answer(request, self._api, INPUT_TOKENS, body)

    def _stream_job(self, job: Job, after: int = -1) -> SSEResponse:
        # The job goes on when its reader disconnects.
        return SSEResponse(
            self._background.stream(job, after),
            lambda: None,
            encode_reader_end,
            self._answers.comments_after_s,
        )

    async def _get(self, request: Request) -> Response | SSEResponse:
        response_id = request.path_params["response_id"]
        if request.query_params.get("stream") == "true" and request.method == "GET":
            after = read_starting_after(request.query_params.get("starting_after"))
            return self._stream_job(await self._background.get_job(response_id), after)
        response = await self._api.get(response_id)
        return Response(response, media_type=_MEDIA_TYPE)

    async def _delete(self, request: Request) -> Response:
        return JSON(await self._api.delete(request.path_params["response_id"]))

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
        page = await self._api.list_input_items(
            request.path_params["response_id"],
            limit=int(limit),
            order=order,
            after=query.get("after"),
        )
        return JSON(page)
