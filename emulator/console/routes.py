"""`/console/*`: the routes that only the console's page uses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from common.setting_error import SettingError
from common.value_description import describe_value
from emulator.autoscaling.handler_state import HandlerState
from emulator.console import job_view
from emulator.console.description import describe_console, describe_handler_console
from emulator.console.events import JobEventStream
from emulator.console.example_inputs import read_example_inputs
from emulator.console.generation_tracker import GenerationTracker
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.route_facts import (
    ApiRoute,
    OperationName,
    RequestLog,
    RouteFacts,
    RouteGroup,
    RouteHandler,
)
from emulator.runpod.job_response import LOCAL_WORKER_NAME, build_request, worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.tests_file.editor import FileFull, FileLimits, add_test
from emulator.tests_file.saved_job import build_test, find_file_to_extend
from engine import Engine
from handler.errors import InvalidRequest, NotFound, PayloadTooLarge
from jobs import Job, JobStatus, JobStore

# The page repeats its requests once a second.
_FACTS = RouteFacts(group=RouteGroup.CLIENT, operation=OperationName.CONSOLE, log=RequestLog.DEBUG)
_MAX_LISTED = 100
_MAX_NAME_BYTES = 10_000
_TESTS_FILE_LIMITS = FileLimits(size_bytes=16_000_000, tests=1_000)
# Saves that may wait for the one that writes, each with a copy of its job.
_MAX_WAITING_SAVES = 100
# How many of the newest jobs are searched for those with a given status.
_MAX_SEARCHED = 5_000


class ConsoleRoutes:
    """Lists and follows the jobs of all endpoints, describes the parameters, and saves tests.

    `engines` maps model names to engines, and the default model's engine is described. On a server
    for handlers of the user's, `engines` is None, and the `handlers` are described, by endpoint.
    `faults` lists what a request may ask for; None if it may ask for none.
    """

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        engines: Mapping[str, Engine] | None,
        handlers: Mapping[str, HandlerState],
        tracker: GenerationTracker,
        settings: EmulatorSettings,
        faults: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._engine = None if engines is None else engines[settings.served_model]
        self._handlers = handlers
        self._tracker = tracker
        self._settings = settings
        self._faults = faults
        self._tests_file_lock = asyncio.Lock()
        self._waiting_saves = 0

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, str, RouteHandler]] = [
            ("GET", "/console/description", self._describe),
            ("GET", "/console/jobs", self._list),
            ("GET", "/console/jobs/{job_id}", self._show),
            ("POST", "/console/jobs/{job_id}/test", self._save_as_test),
        ]
        return [
            ApiRoute(path, handler, methods=[method], facts=_FACTS)
            for method, path, handler in table
        ]

    async def _describe(self, request: Request) -> Response:
        return JSON({**await self._read_description(request), "faults": self._faults})

    async def _read_description(self, request: Request) -> dict[str, Any]:
        if self._engine is not None:
            failure = self._engine.failure
            trouble = failure.message if failure else self._engine.trouble
            description = describe_console(self._settings, self._engine.capabilities, trouble)
            return {**description, "endpoints": [], "handler": None, "examples": None}
        endpoint = request.query_params.get("endpoint", self._settings.endpoint_id)
        endpoints = list(self._handlers)
        handler = self._handlers.get(endpoint)
        if handler is None:
            return describe_handler_console(endpoint, endpoints, None)
        examples = await asyncio.to_thread(read_example_inputs, handler.folders)
        return describe_handler_console(endpoint, endpoints, handler.to_wire(), examples)

    async def _list(self, request: Request) -> Response:
        status = _read_status(request)
        own = {self._settings.endpoint_id, *self._handlers}
        endpoints = sorted(own.union(self._store.list_endpoints()))
        endpoint = request.query_params.get("endpoint", self._settings.endpoint_id)
        recent = await self._store.list_recent_jobs(
            endpoint,
            _MAX_LISTED if status is None else _MAX_SEARCHED,
            # Also jobs of /runsync and of OpenAI calls.
            with_unpublished=True,
        )
        jobs = [job for job in recent if status in (None, job.status)][:_MAX_LISTED]
        stats = await self._store.stats(endpoint)
        return JSON(
            {
                "endpoints": endpoints,
                "endpoint": endpoint,
                "counts": {each.value: stats.counts.get(each, 0) for each in JobStatus},
                "workers": self._worker_registry.count_workers(endpoint),
                "jobs": [
                    job_view.summary_view(job, self._tracker.first_text_at(job.id)) for job in jobs
                ],
            }
        )

    async def _show(self, request: Request) -> Any:
        job_id = request.path_params["job_id"]
        job = await self._store.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if "text/event-stream" in request.headers.get("accept", ""):
            local = worker_key(self._settings.endpoint_id, LOCAL_WORKER_NAME)
            explain_wait = self._worker_registry.explain_waiting_job
            return JobEventStream(
                self._store, self._tracker, job_id, local, explain_wait
            ).response()
        message = self._worker_registry.explain_waiting_job(job)
        return JSON(job_view.full_view(job, self._tracker.first_text_at(job_id), message))

    async def _save_as_test(self, request: Request) -> Response:
        """Write a stored job as a test into the `tests.json` in the handler's folder."""
        body = await read_json(request, _MAX_NAME_BYTES)
        name = body.get("name")
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(
                f"name must be a non-empty string, got {describe_value(name)}", "name"
            )
        job_id = request.path_params["job_id"]
        job = await self._store.get(job_id)
        if not self._handlers:
            raise NotFound("this server runs no handler, so there is no tests file to add a job to")
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.endpoint not in self._handlers:
            raise NotFound(f"this server runs no handler of the job's endpoint, {job.endpoint}")
        path = find_file_to_extend(self._handlers[job.endpoint].folders)
        if self._waiting_saves >= _MAX_WAITING_SAVES:
            raise HTTPException(
                429,
                f"{_MAX_WAITING_SAVES} jobs are being saved as tests already: try again",
                headers={"Retry-After": "1"},
            )
        self._waiting_saves += 1
        # A task of its own: the thread goes on writing if this request is cancelled, and the next
        # one must wait for it.
        saving = asyncio.create_task(self._write_test(path, name.strip(), job))
        try:
            await asyncio.shield(saving)
        except FileFull as error:
            raise PayloadTooLarge(str(error)) from None
        except SettingError as error:
            raise InvalidRequest(str(error)) from None
        return JSON({"file": str(path)})

    async def _write_test(self, path: Path, name: str, job: Job) -> None:
        """Write a test when all earlier ones are written. Raises SettingError."""
        try:
            async with self._tests_file_lock:
                await asyncio.to_thread(_add_job_as_test, path, name, job)
        finally:
            self._waiting_saves -= 1


def _add_job_as_test(path: Path, name: str, job: Job) -> None:
    kept = orjson.loads(orjson.dumps(build_request(job)))
    add_test(path, build_test(name, kept), _TESTS_FILE_LIMITS)


def _read_status(request: Request) -> JobStatus | None:
    raw = request.query_params.get("status")
    if not raw:
        return None
    try:
        return JobStatus(raw)
    except ValueError:
        allowed = ", ".join(each.value for each in JobStatus)
        raise InvalidRequest(
            f"status must be one of {allowed}, got {describe_value(raw)}", "status"
        ) from None
