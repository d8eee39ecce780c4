"""`/v2/{endpoint}/openai/v1/*`: OpenAI's routes of any endpoint, by way of its queue, as RunPod's.

A call becomes a job whose input is `{"openai_route": …, "openai_input": …}`, for the worker in this
process or for one that has joined, and what the worker says of it becomes an OpenAI answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON, error_response
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR, ShutdownState
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from emulator.openai.queued_call import QueuedCall
from emulator.openai.worker_output import CallFailed, read_body
from emulator.runpod.client_routes import asked_wait_s
from emulator.runpod.job_request import new_job
from emulator.settings import EmulatorSettings
from handler.errors import ModelNotFound, error_info
from handler.openai.events import DONE, error_event
from handler.openai.service import EMBEDDINGS, ENDPOINT_SPECS, MODELS, OpenAIService
from handler.sampling import describe_value
from jobs import Job, JobStore, StoreUnavailable

logger = logging.getLogger(__name__)

PREFIX = "/v2/{endpoint}/openai"


class QueuedOpenAIRoutes:
    """Sends calls as jobs and answers with what becomes of them.

    Whatever is posted goes to the worker, known here or not, as on RunPod: it is the worker that
    knows its routes. The models of the worker in this process are known without asking it, which
    could not answer while it is busy or loads.
    """

    def __init__(
        self,
        store: JobStore,
        service: OpenAIService,
        shutdown: ShutdownState,
        settings: EmulatorSettings,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._store = store
        self._service = service
        self._shutdown = shutdown
        self._policy = settings.policy_limits()
        self._max_body_bytes = int(settings.max_body_mb * 1e6)
        self._local = settings.endpoint_id if settings.local_worker else None
        self._keep_alive_s = keep_alive_s
        self._taking_back: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        models = PREFIX + MODELS
        posted = [*ENDPOINT_SPECS, EMBEDDINGS, "/v1/{route:path}"]
        return [
            Route(models, self._models, methods=["GET"]),
            Route(f"{models}/{{model:path}}", self._model, methods=["GET"]),
            *[Route(PREFIX + route, self._generate, methods=["POST"]) for route in posted],
        ]

    async def close(self) -> None:
        """Wait until the jobs are taken back whose clients have left."""
        if self._taking_back:
            await asyncio.wait(self._taking_back)

    async def _generate(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        route = "/v1/" + request.scope["path"].partition("/openai/v1/")[2]
        if body.get("stream") is True:
            return await self._streamed(request, route, body)
        return JSON(await self._whole(request, route, body))

    async def _models(self, request: Request) -> Response:
        return JSON(await self._list(request))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            # A name may have a slash in it, so this route takes the list's with one at its end too.
            return RedirectResponse(request.url.path.rstrip("/"))
        if request.path_params["endpoint"] == self._local:
            return JSON(self._service.get_model(name))
        found = await self._list(request)
        models = [each for each in found.get("data") or () if isinstance(each, dict)]
        for model in models:
            if model.get("id") == name:
                return JSON(model)
        names = [str(each.get("id")) for each in models]
        raise ModelNotFound(
            f"the model {describe_value(name)} does not exist, there is: {', '.join(names)}",
            "model",
            {"available_models": names},
        )

    async def _list(self, request: Request) -> dict[str, Any]:
        if request.path_params["endpoint"] == self._local:
            return self._service.list_models()
        # What asks is told from what is sent by there being nothing in it.
        return await self._whole(request, MODELS, {})

    async def _whole(self, request: Request, route: str, body: dict[str, Any]) -> dict[str, Any]:
        call = await self._send(request, route, body)
        try:
            job = await while_connected(request.receive, call.end())
        finally:
            call.leave()
        output = orjson.loads(job.output) if job.output is not None else None
        if output == []:
            # Of a generator whose worker does not collect what it yields.
            output = [
                orjson.loads(chunk.value)
                for chunk in await self._store.read_chunks(job.id, (0, 0), 0)
            ]
        return read_body(output)

    async def _streamed(self, request: Request, route: str, body: dict[str, Any]) -> SSEResponse:
        call = await self._send(request, route, body)
        try:
            # A failure before the first event is an HTTP error (R30).
            first = await while_connected(request.receive, call.events())
        except BaseException:
            call.leave()
            raise
        farewell = error_event(SHUTTING_DOWN_ERROR) + DONE
        return SSEResponse(_events(call, first), call.leave, farewell, self._keep_alive_s)

    async def _send(self, request: Request, route: str, body: dict[str, Any]) -> QueuedCall:
        """Queue a call, a job as /runsync's. Raises InvalidRequest, StoreFull, StoreUnavailable."""
        wait_s = asked_wait_s(request)
        given = {"input": {"openai_route": route, "openai_input": body}}
        new = new_job(given, request.path_params["endpoint"], self._policy, sync=True)
        job = await self._store.enqueue(new)
        # For the line in the log.
        request.path_params["job_id"] = job.id
        return QueuedCall(self._store, job, self._shutdown, wait_s, self._on_left)

    def _on_left(self, job: Job, over: bool) -> None:
        if over:
            return
        task = asyncio.create_task(self._cancel(job.id))
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)

    async def _cancel(self, job_id: str) -> None:
        try:
            await self._store.cancel(job_id)
        except StoreUnavailable as error:
            logger.warning(
                "job %s goes on, though its client has left: %s",
                job_id,
                error,
                extra={"job_id": job_id},
            )


async def _events(call: QueuedCall, first: bytes) -> AsyncGenerator[bytes, None]:
    yield first
    try:
        while not call.done:
            yield await call.events()
    except CallFailed as failed:
        yield error_event(failed.problem) + DONE
    except Exception as error:
        # Whatever it was: a stream that just stops would look like a whole answer to some clients.
        yield error_event(error_info(error)) + DONE


async def on_call_failed(request: Request, error: Exception) -> Response:
    """Answer a call whose job has no answer."""
    return error_response(error.problem if isinstance(error, CallFailed) else error_info(error))
