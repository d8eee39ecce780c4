"""RunPod's worker routes: the calls of an unmodified SDK worker."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from common.digits import parse_digits
from common.failpoints import failpoint
from common.value_description import describe_value
from emulator.http.disconnect import ClientDisconnected, while_connected
from emulator.http.error_format import ErrorFormat
from emulator.http.refusal_log import RefusalLog
from emulator.http.request_body import encode_json, read_object, require_json_content_type
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
from emulator.runpod.dispatcher import JobDispatcher
from emulator.runpod.job_response import LOCAL_WORKER_NAME, is_managed, worker_key
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.result_watch import ResultWatch
from emulator.runpod.worker_registry import WorkerRegistry, describe_stop
from emulator.settings.emulator_settings import EmulatorSettings
from handler.errors import InvalidRequest, PayloadTooLarge
from jobs import Job, JobStatus, JobStore, StoreFull

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_BATCH_JOBS = 1_000
# How many of the jobs that a ping lists are checked for whether they have ended.
_MAX_LISTED_JOBS = 1_000
# The start of a progress update, which the SDK posts as it posts a result.
_PROGRESS = re.compile(rb'\s*\{\s*"status"\s*:\s*"IN_PROGRESS"')
# The interval at which a held call checks conditions that no event signals.
_CHECK_INTERVAL_S = 0.25
# Less than the 90 s after which the SDK aborts its job-stop call.
_MAX_STOP_HOLD_S = 80.0
# A handler that runs for longer after a request to stop is stopped with its worker.
_MAX_STOP_S = 10.0
# The SDK repeats a refused call at once, ten thousand times a second if the refusal is not delayed.
_REFUSAL_DELAY_S = 5.0


def _poll_facts(operation: OperationName, *, takes_jobs: bool = False) -> RouteFacts:
    """Return the facts of a request that workers repeat, held until there is something to do."""
    return RouteFacts(
        group=RouteGroup.WORKER,
        operation=operation,
        error_format=ErrorFormat.RUNPOD,
        takes_jobs=takes_jobs,
        log=RequestLog.DEBUG,
    )


def _output_facts(operation: OperationName) -> RouteFacts:
    """Return the facts of a request with a job's output."""
    return RouteFacts(
        group=RouteGroup.WORKER,
        operation=operation,
        error_format=ErrorFormat.RUNPOD,
        sends_output=True,
        log=RequestLog.FAILURES,
    )


_TAKE = _poll_facts(OperationName.JOB_TAKE, takes_jobs=True)
_TAKE_BATCH = _poll_facts(OperationName.JOB_TAKE_BATCH, takes_jobs=True)
_STOP = _poll_facts(OperationName.JOB_STOP)
_STREAM = _output_facts(OperationName.JOB_STREAM)
_DONE = _output_facts(OperationName.JOB_DONE)
_PING = _poll_facts(OperationName.PING)


class WorkerRoutes:
    """Dispatches jobs to workers and stores their results.

    A worker is identified by the path: the SDK's X-Request-ID belongs to a connection and may name
    another job. A post about a job that has ended, or is leased to another worker, gets a 200 and
    is ignored: an error would only make the worker retry.
    """

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        settings: EmulatorSettings,
        shutdown: ShutdownState,
        result_watch: ResultWatch,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._result_watch = result_watch
        self._shutdown = shutdown
        self._dispatcher = JobDispatcher(
            store, shutdown, hold_s=settings.poll_hold_s, lease_s=settings.lease_s
        )
        self._max_run_bytes = int(settings.max_run_mb * 1e6)
        self._max_runsync_bytes = int(settings.max_runsync_mb * 1e6)
        self._refusals = RefusalLog()
        self._values = settings.job_value_limit()
        self._max_chunk_bytes = int(settings.max_chunk_mb * 1e6)
        self._local_worker_key = worker_key(settings.endpoint_id, LOCAL_WORKER_NAME)

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, str, RouteHandler, RouteFacts]] = [
            ("GET", "/job-take/{worker}", self._take, _TAKE),
            ("GET", "/job-take-batch/{worker}", self._take_batch, _TAKE_BATCH),
            ("GET", "/job-stop/{worker}", self._stop, _STOP),
            ("POST", "/job-stream/{worker}/{job_id}", self._stream, _STREAM),
            ("POST", "/job-done/{worker}/{job_id}", self._done, _DONE),
            ("GET", "/ping/{worker}", self._ping, _PING),
        ]
        routes = [
            ApiRoute(f"/v2/{{endpoint}}{path}", handler, methods=[method], facts=facts)
            for method, path, handler, facts in table
        ]
        for route in routes:
            if route.methods is not None:
                # Starlette adds HEAD to every GET; a HEAD here would take a job and drop it.
                route.methods.discard("HEAD")
        return routes

    # -- long-polls -----------------------------------------------------------------------------

    async def _take(self, request: Request) -> Response:
        jobs = await self._lease_jobs(request, 1)
        failpoint("handed-out")
        return JSON(job_response.build_worker_job(jobs[0])) if jobs else Response(status_code=204)

    async def _take_batch(self, request: Request) -> Response:
        raw = request.query_params.get("batch_size", "1")
        count = parse_digits(raw, max_digits=9) or 0
        if count < 1:
            message = f"batch_size must be at least 1, got {describe_value(raw)}"
            await self._delay_refusal(request, message)
            raise InvalidRequest(message, "batch_size")
        # A worker may ask for thousands, as its concurrency_modifier says.
        jobs = await self._lease_jobs(request, min(count, _MAX_BATCH_JOBS))
        if not jobs:
            return Response(status_code=204)
        return JSON([job_response.build_worker_job(job) for job in jobs])

    async def _lease_jobs(self, request: Request, limit: int) -> list[Job]:
        worker = await self._polling_worker(request)
        in_progress = request.query_params.get("job_in_progress")
        if in_progress == "0":
            worker.report_no_jobs(self._worker_registry.leased_jobs(worker))
        undelivered: list[Job] = []
        try:
            with worker.poll("take"):
                lease = self._dispatcher.lease_jobs(worker, limit, is_busy=in_progress == "1")
                return await _run_long_poll(request, lease, undelivered.extend)
        finally:
            for job in undelivered:
                await self._store.nack(job.id, job.attempt)

    async def _stop(self, request: Request) -> Response:
        worker = await self._polling_worker(request)

        def requeue_stops(job_ids: list[str]) -> None:
            for job_id in job_ids:
                self._store.request_stop(worker.key, job_id)

        with worker.poll("stop"):
            wait = self._shutdown.wait_until_deadline(self._wait_for_stops(worker), list[str]())
            job_ids = await _run_long_poll(request, wait, requeue_stops)
        return JSON({"jobsToStop": job_ids}) if job_ids else Response(status_code=204)

    async def _wait_for_stops(self, worker: RemoteWorker) -> list[str]:
        """Wait for jobs to stop; while the worker has jobs, the open poll is its sign of life."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _MAX_STOP_HOLD_S
        while True:
            job_ids = await self._store.receive_stops(worker.key, _CHECK_INTERVAL_S)
            if job_ids:
                return job_ids
            may_end = worker.is_shutting_down(time.monotonic()) or loop.time() > deadline
            if may_end and not self._worker_registry.leased_jobs(worker):
                return []

    # -- posts ----------------------------------------------------------------------------------

    async def _stream(self, request: Request) -> Response:
        require_json_content_type(request)
        job = await self._find_leased_job(request)
        if job is None:
            return JSON({"ok": True, "ignored": True})
        try:
            body = await read_object(request, self._max_chunk_bytes, "it", values=self._values)
            chunk = encode_json(body.get("output"), "it")
            is_accepted = await self._store.append_chunks(job.id, job.attempt, [chunk])
            failpoint("chunk-kept")
        except (InvalidRequest, PayloadTooLarge, StoreFull) as error:
            raise await self._fail_job(request, job, "stream", error) from None
        return JSON({"ok": True} if is_accepted else {"ok": True, "ignored": True})

    async def _done(self, request: Request) -> Response:
        require_json_content_type(request)
        job = await self._find_leased_job(request)
        if job is None:
            return JSON({"ok": True, "ignored": True})
        start = bytearray()
        try:
            max_bytes = self._max_runsync_bytes if job.sync else self._max_run_bytes
            body = await read_object(request, max_bytes, "it", values=self._values, start=start)
            output = encode_json(body["output"], "it") if "output" in body else None
            job_error = _encode_error(body.get("error"))
        except (InvalidRequest, PayloadTooLarge) as error:
            if _PROGRESS.match(start):
                logger.warning(
                    "job %s: a progress update was dropped: %s",
                    job.id,
                    error,
                    extra={"job_id": job.id},
                )
                return JSON({"ok": True, "ignored": True})
            raise await self._fail_job(request, job, "result", error) from None
        failpoint("result-come")
        if body.get("status") == "IN_PROGRESS":
            is_accepted = await self._store.save_progress(job.id, job.attempt, output or b"null")
        else:
            if body.get("stopPod"):
                self._request_replacement(self._worker(request))
            # The lines that the handler printed last have the job only until it has ended.
            await self._result_watch.read_output(job)
            if job_error is None:
                job_error = await self._describe_lost_chunk(job)
            is_accepted = await self._store.ack(job.id, job.attempt, output=output, error=job_error)
        failpoint("result-kept")
        return JSON({"ok": True} if is_accepted else {"ok": True, "ignored": True})

    async def _describe_lost_chunk(self, job: Job) -> str | None:
        """Return the error of a streamed job of which the worker could not send a chunk."""
        if not await self._store.read_chunks(job.id, (0, 0), 0):
            return None
        reason = self._result_watch.take_reason(job)
        if reason is None:
            return None
        return f"a part of the job's stream could not be sent: {reason}"

    def _request_replacement(self, worker: RemoteWorker) -> None:
        worker.requests_replacement = True
        if not is_managed(worker.name):
            logger.warning(
                "worker %s ends after this job, because its handler has refresh_worker; it was "
                "started by hand, so start it again",
                worker.name,
            )

    async def _fail_job(
        self, request: Request, job: Job, kind: str, error: Exception
    ) -> InvalidRequest:
        """Fail a job whose result or chunk is refused; return the error for the worker.

        RunPod also answers a result that is too large with 400, but then the result is gone and the
        job COMPLETED (runpod-python#309).
        """
        message = f"the job's {kind} could not be taken: {error}"
        logger.warning("job %s: %s", job.id, message, extra={"job_id": job.id})
        if await self._store.ack(job.id, job.attempt, error=message):
            # The worker may otherwise run the job for hours.
            self._store.request_stop(self._worker(request).key, job.id)
        return InvalidRequest(message)

    async def _ping(self, request: Request) -> Response:
        endpoint, name = request.path_params["endpoint"], request.path_params["worker"]
        query = request.query_params
        if query.get("status") == "unhealthy":
            reason = f"{query.get('check')}: {query.get('reason')}"
            self._worker_registry.mark_unhealthy(endpoint, name, reason)
        else:
            listed = query.get("job_id", "")
            if self._worker_registry.record_ping(endpoint, name, listed):
                await self._stop_ended_jobs(endpoint, name, listed)
        return JSON({"ok": True})

    async def _stop_ended_jobs(self, endpoint: str, name: str, listed: str) -> None:
        """Tell a worker again to stop those of its listed jobs that have already ended.

        The SDK ignores the stop of a job that it has taken and not begun. On a machine with much
        other work it may begin the job after both stops, and would then run a cancelled job.
        """
        for job_id in listed.split(",", _MAX_LISTED_JOBS)[:_MAX_LISTED_JOBS]:
            job = await self._store.get(job_id) if job_id else None
            if job is None or not job.status.is_final:
                continue
            self._store.request_stop(worker_key(endpoint, name), job.id)
            ended_s = time.time() - (job.ended_at or 0.0)
            is_stopped = job.status in (JobStatus.TIMED_OUT, JobStatus.CANCELLED)
            if is_stopped and ended_s > _MAX_STOP_S:
                worker = self._worker_registry.get_or_register(endpoint, name)
                worker.record_unstopped_job(describe_stop(job))

    # -- the caller -----------------------------------------------------------------------------

    async def _polling_worker(self, request: Request) -> RemoteWorker:
        """Return the worker of a long-poll; delay a refusal, which the SDK would retry at once."""
        try:
            return self._worker(request)
        except HTTPException as error:
            if error.status_code != 429:
                await self._delay_refusal(request, error.detail)
            raise

    async def _delay_refusal(self, request: Request, reason: str) -> None:
        """Let the refusal of a call wait, and name it once in the log."""
        self._refusals.record(request.path_params["worker"], reason)
        await while_connected(request.receive, asyncio.sleep(_REFUSAL_DELAY_S))

    def _worker(self, request: Request) -> RemoteWorker:
        """Return the worker that makes a call. Raises HTTPException."""
        endpoint, name = request.path_params["endpoint"], request.path_params["worker"]
        if worker_key(endpoint, name) == self._local_worker_key:
            raise HTTPException(409, f"{name} is the server's own worker: choose another name")
        return self._worker_registry.get_or_register(endpoint, name)

    async def _find_leased_job(self, request: Request) -> Job | None:
        """Return the job that a worker posts about; None if it is not leased to that worker."""
        endpoint, name = request.path_params["endpoint"], request.path_params["worker"]
        job = await self._store.get(request.path_params["job_id"])
        if job is None or job.status.is_final or job.worker_id != worker_key(endpoint, name):
            return None
        self._worker(request).record_post()
        return job


async def _run_long_poll(
    request: Request, work: Coroutine[Any, Any, list[T]], give_back: Callable[[list[T]], None]
) -> list[T]:
    """Return the result of `work`.

    If the worker disconnects first, give a result back and raise ClientDisconnected.
    """
    result = await while_connected(request.receive, work, dispose=give_back)
    if result and await request.is_disconnected():
        # The worker disconnected in the same turn of the event loop in which `work` finished.
        give_back(result)
        raise ClientDisconnected
    return result


def _encode_error(error: Any) -> str | None:
    """Return the error that a worker reports as a string, if any. Raises InvalidRequest."""
    if not error:
        return None
    return error if isinstance(error, str) else encode_json(error, "its error").decode()
