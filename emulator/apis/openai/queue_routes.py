"""Serve `/v2/{endpoint}/openai/v1/*`: OpenAI's and Anthropic's API, through an endpoint's queue.

As on RunPod, a call becomes a job whose input is `{"openai_route": …, "openai_input": …}`. The
local worker or an SDK worker runs it, and its output becomes the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from common.json_object import JsonObject
from common.value_description import describe_value
from emulator.apis.messages.routes import MESSAGES_FACTS
from emulator.apis.openai.queued_call import QueuedCall
from emulator.apis.openai.routes import find_operation
from emulator.apis.responses.routes import RESPONSES_FACTS
from emulator.http.call_answers import answer_call
from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.route_facts import (
    ApiRoute,
    OperationName,
    RouteFacts,
    RouteHandler,
    openai_facts,
)
from emulator.http.shutdown_state import ShutdownState
from emulator.http.sse import SSEResponse
from emulator.runpod.client_routes import read_wait_s
from emulator.runpod.job_request import parse_job
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.calls import find_format
from handler.apis.messages.api import MessagesApi
from handler.apis.openai.api import ROUTES
from handler.apis.openai.service import MODELS, OpenAIService
from handler.apis.responses.api import RESPONSES
from handler.errors import ModelNotFound
from handler.models.model_name_map import find_served_name
from jobs import Job, JobStore, StoreUnavailable

logger = logging.getLogger(__name__)

PREFIX = "/v2/{endpoint}/openai"


class QueuedOpenAIRoutes:
    """Submits calls as jobs and returns their output.

    As on RunPod, every call goes to the worker, even to a route that this server does not have:
    only the worker knows its own routes. The models of the local worker are listed without a job,
    because the local worker cannot run a job while it is busy or loading. `service` answers for the
    local worker; it is None on a server without one.
    """

    def __init__(
        self,
        store: JobStore,
        service: OpenAIService | None,
        shutdown: ShutdownState,
        settings: EmulatorSettings,
        *,
        check_endpoint: Callable[[str], None] = lambda endpoint: None,
    ) -> None:
        self._store = store
        self._check_endpoint = check_endpoint
        # That of the local worker, whose models are listed without a job.
        self._local_service = service if settings.local_worker else None
        self._shutdown = shutdown
        self._policy = settings.policy_limits()
        self._max_body_bytes = int(settings.max_body_mb * 1e6)
        self._local_endpoint = settings.endpoint_id
        self._comments_after_s = settings.stream_comments_after_s
        self._cancellations: set[asyncio.Task[None]] = set()

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        models = openai_facts(OperationName.MODELS)
        # Only the path says which operation of the worker is called, if this server has it.
        forwarded = openai_facts(None)
        table: list[tuple[str, list[str], RouteHandler, RouteFacts]] = [
            (MODELS, ["GET"], self._list_models, models),
            (f"{MODELS}/{{model:path}}", ["GET"], self._get_model, models),
            *[(path, ["POST"], self._call_worker, MESSAGES_FACTS) for path in MessagesApi.routes],
            (RESPONSES, ["POST"], self._call_worker, RESPONSES_FACTS),
            *[
                (path, ["POST"], self._call_worker, openai_facts(find_operation(path)))
                for path in ROUTES
            ],
            ("/v1/{route:path}", ["POST"], self._call_worker, forwarded),
            ("/v1/{route:path}", ["GET", "DELETE"], self._forward, forwarded),
        ]
        return [
            ApiRoute(PREFIX + path, handler, methods=methods, facts=facts)
            for path, methods, handler, facts in table
        ]

    async def close(self) -> None:
        """Wait until the jobs of disconnected clients are cancelled."""
        if self._cancellations:
            await asyncio.wait(self._cancellations)

    async def _call_worker(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        job_input = {"openai_route": _route_of(request), "openai_input": body}
        return await self._answer(request, job_input, streaming=body.get("stream") is True)

    async def _forward(self, request: Request) -> Response | SSEResponse:
        """Pass on a GET or DELETE in the two forms that RunPod's vLLM worker reads."""
        route = _route_of(request)
        if request.url.query:
            route += f"?{request.url.query}"
        job_input: dict[str, Any] = {"openai_route": route, "openai_input": {}}
        if request.method != "GET":
            job_input = {"route": route, "body": None, "method": request.method}
        return await self._answer(request, job_input)

    async def _list_models(self, request: Request) -> Response:
        return JSON(await self._read_model_list(request))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        service = self._service_of(request)
        if service is not None:
            return JSON(await service.get_model(name))
        model_list = await self._read_model_list(request)
        models = [each for each in model_list.get("data") or () if isinstance(each, dict)]
        names = [str(each.get("id")) for each in models]
        if (served := find_served_name(name, names)) is not None:
            return JSON(models[names.index(served)])
        raise ModelNotFound(
            f"the model {describe_value(name)} does not exist, there is: {', '.join(names)}",
            "model",
            {"available_models": names},
        )

    async def _read_model_list(self, request: Request) -> JsonObject:
        service = self._service_of(request)
        if service is not None:
            return await service.list_models()
        # An empty input means GET: a job has no HTTP method.
        call = await self._submit(request, {"openai_route": MODELS, "openai_input": {}})
        return await while_connected(request.receive, call.complete())

    async def _answer(
        self, request: Request, job_input: JsonObject, *, streaming: bool = False
    ) -> Response | SSEResponse:
        call = await self._submit(request, job_input, streaming=streaming)
        return await answer_call(request.receive, call, self._comments_after_s)

    def _service_of(self, request: Request) -> OpenAIService | None:
        is_local = request.path_params["endpoint"] == self._local_endpoint
        return self._local_service if is_local else None

    async def _submit(
        self, request: Request, job_input: JsonObject, *, streaming: bool = False
    ) -> QueuedCall:
        """Queue a call as a synchronous job, like /runsync; `job_input` is the job's input.

        Raises:
            InvalidRequest: the body or the query is wrong.
            NotFound: the server runs handlers, and none of this endpoint.
            StoreFull: the store has no room for another job.
            StoreUnavailable: the job cannot be written.
        """
        wait_s = read_wait_s(request)
        job_body = {"input": job_input}
        endpoint = request.path_params["endpoint"]
        self._check_endpoint(endpoint)
        job = await self._store.enqueue(parse_job(job_body, endpoint, self._policy, sync=True))
        # For the request's log line.
        request.path_params["job_id"] = job.id
        return QueuedCall(
            self._store,
            job,
            self._shutdown,
            wait_s,
            self._on_detach,
            find_format(job_input.get("openai_route", "")),
            streaming=streaming,
        )

    def _on_detach(self, job: Job, is_finished: bool) -> None:
        if is_finished:
            return
        task = asyncio.create_task(self._cancel_job(job.id))
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    async def _cancel_job(self, job_id: str) -> None:
        try:
            await self._store.cancel(job_id)
        except StoreUnavailable as error:
            logger.warning(
                "job %s of a disconnected client could not be cancelled: %s",
                job_id,
                error,
                extra={"job_id": job_id},
            )


def _route_of(request: Request) -> str:
    return "/v1/" + str(request.scope["path"]).partition("/openai/v1/")[2]
