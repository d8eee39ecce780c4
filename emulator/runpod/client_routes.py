"""RunPod's client routes: `/v2/{endpoint}/…`, and the short forms for the default endpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from structlog.contextvars import bind_contextvars

from common.digits import parse_digits
from common.failpoints import failpoint
from emulator.bucket.service import Bucket
from emulator.http.disconnect import ClientDisconnected, while_connected
from emulator.http.error_format import ErrorFormat
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
from emulator.http.shutdown_state import ShutdownState
from emulator.runpod import job_response
from emulator.runpod.job_request import parse_job
from emulator.runpod.job_response import LOCAL_WORKER_NAME
from emulator.runpod.job_wait import wait_for_end
from emulator.runpod.stream_end import explain_empty_output
from emulator.runpod.stream_route import JobStream
from emulator.runpod.webhook_loops import received_depth
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.emulator_settings import EmulatorSettings
from handler.errors import InvalidRequest, NotFound
from handler.input.job_keys import find_job_warnings
from jobs import Job, JobStatus, JobStore, NewJob, NotRetryable

logger = logging.getLogger(__name__)

# RunPod's default and bounds of `?wait=`.
_DEFAULT_WAIT_MS, _MIN_WAIT_MS, _MAX_WAIT_MS = 90_000, 1_000, 300_000
# During a wait this short, the connection of the client is not watched.
_UNWATCHED_WAIT_S = 0.25
# The maximum number of jobs in a response to `/requests`.
_MAX_RECENT_JOBS = 100


def _facts(
    operation: OperationName,
    *,
    rate_limit: OperationName | None = None,
    starts_work: bool = False,
    log: RequestLog = RequestLog.ALWAYS,
) -> RouteFacts:
    return RouteFacts(
        group=RouteGroup.CLIENT,
        operation=operation,
        error_format=ErrorFormat.RUNPOD,
        rate_limit=rate_limit,
        starts_work=starts_work,
        log=log,
    )


_RUN = _facts(OperationName.RUN, rate_limit=OperationName.RUN, starts_work=True)
_RUNSYNC = _facts(OperationName.RUNSYNC, rate_limit=OperationName.RUNSYNC, starts_work=True)
_STATUS = _facts(OperationName.STATUS, rate_limit=OperationName.STATUS, log=RequestLog.FAILURES)
# RunPod counts both under one limit.
_STATUS_SYNC = replace(_STATUS, operation=OperationName.STATUS_SYNC)
_STREAM = _facts(OperationName.STREAM, rate_limit=OperationName.STREAM, log=RequestLog.FAILURES)
_CANCEL = _facts(OperationName.CANCEL, rate_limit=OperationName.CANCEL)
_RETRY = _facts(OperationName.RETRY, starts_work=True)
_PURGE = _facts(OperationName.PURGE_QUEUE, rate_limit=OperationName.PURGE_QUEUE)
_RESET = _facts(OperationName.RESET)
_REQUESTS = _facts(OperationName.REQUESTS, rate_limit=OperationName.REQUESTS)
_HEALTH = _facts(OperationName.HEALTH)


class ClientRoutes:
    """The routes that create, await, read, stream, cancel and retry jobs."""

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        settings: EmulatorSettings,
        shutdown: ShutdownState,
        bucket: Bucket | None = None,
        *,
        check_endpoint: Callable[[str], None] = lambda endpoint: None,
    ) -> None:
        self._store = store
        self._shutdown = shutdown
        self._bucket = bucket
        self._check_endpoint = check_endpoint
        self._worker_registry = worker_registry
        self._default_endpoint = settings.endpoint_id
        self._policy_limits = settings.policy_limits()
        self._targets = settings.outbound_policy()
        self._max_run_bytes = int(settings.max_run_mb * 1e6)
        self._max_runsync_bytes = int(settings.max_runsync_mb * 1e6)
        self._job_values = settings.job_value_limit()
        local = job_response.worker_key(settings.endpoint_id, LOCAL_WORKER_NAME)
        self._stream = JobStream(
            store, settings.stream_hold_s, settings.stream_comments_after_s, local_worker=local
        )

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        get_or_post = ["GET", "POST"]
        table: list[tuple[str, RouteHandler, list[str], RouteFacts]] = [
            ("/run", self._run, ["POST"], _RUN),
            ("/runsync", self._runsync, ["POST"], _RUNSYNC),
            ("/status/{job_id}", self._status, get_or_post, _STATUS),
            ("/status-sync/{job_id}", self._status_sync, get_or_post, _STATUS_SYNC),
            ("/stream/{job_id}", self._read_stream, get_or_post, _STREAM),
            ("/cancel/{job_id}", self._cancel, ["POST"], _CANCEL),
            ("/retry/{job_id}", self._retry, ["POST"], _RETRY),
            ("/purge-queue", self._purge, ["POST"], _PURGE),
            ("/reset", self._reset, ["POST"], _RESET),
            ("/requests", self._requests, get_or_post, _REQUESTS),
            ("/requests/{job_id}", self._request, get_or_post, _REQUESTS),
        ]
        # /health without an endpoint is the server's own.
        with_endpoint = [*table, ("/health", self._health, get_or_post, _HEALTH)]
        return [
            ApiRoute(prefix + path, handler, methods=methods, facts=facts)
            for prefix, routes in (("/v2/{endpoint}", with_endpoint), ("", table))
            for path, handler, methods, facts in routes
        ]

    async def _run(self, request: Request) -> Response:
        body = await self._read_job(request, self._max_run_bytes)
        new = self._parse_job(request, body, sync=False)
        job = await self._enqueue(new)
        failpoint("run-accepted")
        return JSON(job_response.build_accepted(job) | _log_warnings(body))

    async def _runsync(self, request: Request) -> Response:
        wait_s = read_wait_s(request)
        body = await self._read_job(request, self._max_runsync_bytes)
        new = self._parse_job(request, body, sync=True)
        job = await self._enqueue(new)
        try:
            job = await self._wait_for_end(request, job.id, wait_s)
        except ClientDisconnected:
            # Only this wait ends: as on RunPod, the job continues. /requests lists it from now on.
            await self._store.publish(job.id)
            raise
        if not job.status.is_final:
            await self._store.publish(job.id)
        failpoint("runsync-ended")
        return JSON(await self._build_status(job) | _log_warnings(body))

    async def _read_job(self, request: Request, max_bytes: int) -> dict[str, Any]:
        is_local = self._worker_registry.local_status(self._endpoint_of(request)) is not None
        return await read_json(request, max_bytes, None if is_local else self._job_values)

    async def _status(self, request: Request) -> Response:
        return JSON(await self._build_status(await self._find_job(request)))

    async def _status_sync(self, request: Request) -> Response:
        wait_s = read_wait_s(request)
        job = await self._find_job(request)
        return JSON(await self._build_status(await self._wait_for_end(request, job.id, wait_s)))

    async def _build_status(self, job: Job) -> dict[str, Any]:
        """Return the response to `/status`, with the reason why a job waits.

        Of a job that was streamed, it says where the output is.
        """
        status = job_response.build_status(job)
        if (message := self._worker_registry.explain_waiting_job(job)) is not None:
            status["message"] = message
        if job.status is JobStatus.COMPLETED and job.output == b"[]":
            chunks = await self._store.read_chunks(job.id, (0, 0), 0)
            if (message := explain_empty_output(len(chunks))) is not None:
                status["message"] = message
        return status

    async def _read_stream(self, request: Request) -> Any:
        return await self._stream.respond(request, await self._find_job(request))

    async def _cancel(self, request: Request) -> Response:
        job = await self._find_job(request)
        # Not in `JobStore.cancel`: when a job is cancelled because its client has disconnected,
        # no client knows its id, so it need not be written to the disk.
        await self._store.publish(job.id)
        return JSON(
            job_response.build_accepted(_require_job(await self._store.cancel(job.id), job.id))
        )

    async def _retry(self, request: Request) -> Response:
        # A webhook that retries its own job would be a loop, too.
        received_depth(request.headers)
        job = await self._find_job(request)
        try:
            _require_job(await self._store.retry(job.id), job.id)
        except NotRetryable as error:
            raise InvalidRequest(str(error)) from None
        # The same response as from `/run`, even if a worker has the job already.
        return JSON({"id": job.id, "status": JobStatus.IN_QUEUE.value})

    async def _purge(self, request: Request) -> Response:
        removed = await self._store.purge(self._endpoint_of(request))
        return JSON({"removed": removed, "status": "completed"})

    async def _reset(self, request: Request) -> Response:
        endpoint = self._endpoint_of(request)
        removed = await self._store.reset(endpoint)
        # Objects have no endpoint: the objects of several handlers are removed with the first one's
        # jobs.
        if self._bucket is not None and endpoint == self._default_endpoint:
            await self._bucket.clear()
        return JSON({"removed": removed, "status": "completed"})

    async def _health(self, request: Request) -> Response:
        endpoint = self._endpoint_of(request)
        stats = await self._store.stats(endpoint)
        count = stats.counts.get
        unhealthy = self._worker_registry.unhealthy_workers(endpoint)
        reasons = [{"id": name, "reason": reason} for name, reason in unhealthy.items()]
        return JSON(
            {
                "jobs": {
                    "completed": count(JobStatus.COMPLETED, 0),
                    "failed": count(JobStatus.FAILED, 0) + count(JobStatus.TIMED_OUT, 0),
                    "inProgress": count(JobStatus.IN_PROGRESS, 0),
                    "inQueue": count(JobStatus.IN_QUEUE, 0),
                    "retried": stats.retried,
                },
                "workers": self._worker_registry.count_workers(endpoint),
                **({"unhealthyWorkers": reasons} if reasons else {}),
            }
        )

    async def _requests(self, request: Request) -> Response:
        jobs = await self._store.list_recent_jobs(self._endpoint_of(request), _MAX_RECENT_JOBS)
        return JSON({"requests": [job_response.build_status(job) for job in jobs]})

    async def _request(self, request: Request) -> Response:
        return JSON(job_response.build_request(await self._find_job(request)))

    def _parse_job(self, request: Request, body: dict[str, Any], *, sync: bool) -> NewJob:
        return parse_job(
            body,
            self._endpoint_of(request),
            self._policy_limits,
            sync=sync,
            targets=self._targets,
            webhook_depth=received_depth(request.headers),
        )

    async def _enqueue(self, new: NewJob) -> Job:
        job = await self._store.enqueue(new)
        # All later log lines of this request have the job's id, including the request's own line.
        bind_contextvars(job_id=job.id)
        if (reason := self._worker_registry.explain_unserved(job.endpoint)) is not None:
            logger.warning("job %s waits: %s", job.id, reason)
        return job

    def _endpoint_of(self, request: Request) -> str:
        """Return the endpoint that a request names. Raises NotFound."""
        endpoint: str = request.path_params.get("endpoint", self._default_endpoint)
        self._check_endpoint(endpoint)
        return endpoint

    async def _find_job(self, request: Request) -> Job:
        job_id = request.path_params["job_id"]
        job = await self._store.get(job_id)
        if job is None or job.endpoint != self._endpoint_of(request):
            raise NotFound(f"there is no job {job_id}")
        return job

    async def _wait_for_end(self, request: Request, job_id: str, wait_s: float) -> Job:
        """Return a job when it ends, or its current state after `wait_s`."""
        # Most jobs end so soon that watching the client's connection would cost more.
        unwatched_s = min(_UNWATCHED_WAIT_S, wait_s)
        job = _require_job(await self._store.wait(job_id, unwatched_s), job_id)
        if job.status.is_final:
            return job
        wait = wait_for_end(self._store, self._shutdown, job_id, wait_s - unwatched_s)
        return _require_job(await while_connected(request.receive, wait), job_id)


def _log_warnings(body: dict[str, Any]) -> dict[str, Any]:
    """Log and return warnings about top-level keys that workers do not receive."""
    warnings = find_job_warnings(body)
    for warning in warnings:
        logger.warning("%s", warning)
    return {"warnings": list(warnings)} if warnings else {}


def _require_job(job: Job | None, job_id: str) -> Job:
    if job is None:
        raise NotFound(f"the job {job_id} is not kept any more: its ttl is over")
    return job


def read_wait_s(request: Request) -> float:
    """Return the value of `?wait=` in seconds, or the default. Raises InvalidRequest."""
    # Parsing an empty query string takes as long as reading the body, so check it first.
    raw = request.query_params.get("wait") if request.scope["query_string"] else None
    if raw is None:
        return _DEFAULT_WAIT_MS / 1000
    number = parse_digits(raw, max_digits=9) or 0
    if not _MIN_WAIT_MS <= number <= _MAX_WAIT_MS:
        raise InvalidRequest(
            f"wait must be a whole number of milliseconds from {_MIN_WAIT_MS} to {_MAX_WAIT_MS}, "
            f"got {raw!r}",
            "wait",
        )
    return number / 1000
