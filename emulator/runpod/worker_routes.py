"""The worker's side of RunPod: what an unmodified SDK worker calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.http.disconnect import ClientDisconnected, while_connected
from emulator.http.request_body import encode_json, read_object, require_json_content_type
from emulator.http.responses import JSON
from emulator.http.shutdown_state import ShutdownState
from emulator.runpod import job_response
from emulator.runpod.dispatcher import Handout
from emulator.runpod.job_response import worker_key
from emulator.runpod.local_worker import NAME as LOCAL
from emulator.runpod.remote_worker import Worker
from emulator.runpod.worker_registry import Fleet
from emulator.settings import EmulatorSettings
from handler.errors import InvalidRequest, PayloadTooLarge
from handler.sampling import describe_value
from jobs import Job, JobStore, StoreFull
from jobs.failpoints import failpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_JOBS = 1_000
# 3,000 embeddings of 768 numbers. Workers are trusted with more than clients are: a result that is
# refused ends a job that has been paid for.
_MAX_RESULT_VALUES = 2_500_000
# How often a held call looks at what nothing wakes it for.
_STEP_S = 0.25
# Below the 90 s after which the SDK breaks off its own call of job-stop.
_LONGEST_HOLD_S = 80.0
# The SDK calls again at once after a refusal, ten thousand times a second if it is let.
_REFUSAL_S = 5.0


class WorkerRoutes:
    """Hands out jobs and takes what becomes of them.

    A worker is told by its path: the SDK's X-Request-ID sticks to its connections and lies. What a
    worker says of a job that is over, or no longer its own, is answered with 200 and ignored: an
    error would only make it try again.
    """

    def __init__(
        self, store: JobStore, fleet: Fleet, settings: EmulatorSettings, shutdown: ShutdownState
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._shutdown = shutdown
        self._handout = Handout(store, hold_s=settings.poll_hold_s, lease_s=settings.lease_s)
        self._run_result = int(settings.max_run_mb * 1e6)
        self._runsync_result = int(settings.max_runsync_mb * 1e6)
        self._chunk = int(settings.max_chunk_mb * 1e6)
        self._local = worker_key(settings.endpoint_id, LOCAL)

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        base = "/v2/{endpoint}"
        routes = [
            Route(f"{base}/job-take/{{worker}}", self._take, methods=["GET"]),
            Route(f"{base}/job-take-batch/{{worker}}", self._take_batch, methods=["GET"]),
            Route(f"{base}/job-stop/{{worker}}", self._stop, methods=["GET"]),
            Route(f"{base}/job-stream/{{worker}}/{{job_id}}", self._stream, methods=["POST"]),
            Route(f"{base}/job-done/{{worker}}/{{job_id}}", self._done, methods=["POST"]),
            Route(f"{base}/ping/{{worker}}", self._ping, methods=["GET"]),
        ]
        for route in routes:
            if route.methods is not None:
                # Starlette adds it to every GET; here it would take a job and throw it away.
                route.methods.discard("HEAD")
        return routes

    # -- long-polls -----------------------------------------------------------------------------

    async def _take(self, request: Request) -> Response:
        jobs = await self._leased(request, 1)
        failpoint("handed-out")
        return JSON(job_response.handed_out(jobs[0])) if jobs else Response(status_code=204)

    async def _take_batch(self, request: Request) -> Response:
        raw = request.query_params.get("batch_size", "1")
        count = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 10 else 0
        if not 1 <= count <= _MOST_JOBS:
            raise InvalidRequest(
                f"batch_size must be from 1 to {_MOST_JOBS}, got {describe_value(raw)}",
                "batch_size",
            )
        jobs = await self._leased(request, count)
        if not jobs:
            return Response(status_code=204)
        return JSON([job_response.handed_out(job) for job in jobs])

    async def _leased(self, request: Request, limit: int) -> list[Job]:
        worker = await self._polling(request)
        progress = request.query_params.get("job_in_progress")
        if progress == "0":
            worker.has_none(self._fleet.held(worker))
        given_back: list[Job] = []
        try:
            with worker.poll("takes"):
                found = self._handout.next(worker, limit, busy=progress == "1")
                return await _held_open(request, found, given_back.extend)
        finally:
            for job in given_back:
                await self._store.nack(job.id, job.attempt)

    async def _stop(self, request: Request) -> Response:
        worker = await self._polling(request)

        def give_back(stops: list[str]) -> None:
            for job_id in stops:
                self._store.request_stop(worker.key, job_id)

        with worker.poll("stops"):
            told = self._shutdown.wait_until_deadline(self._stops(worker), list[str]())
            stops = await _held_open(request, told, give_back)
        return JSON({"jobsToStop": stops}) if stops else Response(status_code=204)

    async def _stops(self, worker: Worker) -> list[str]:
        """Wait for jobs to stop; while it has any, the poll stays open as its sign of life."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_HOLD_S
        while True:
            stops = await self._store.receive_stops(worker.key, _STEP_S)
            if stops:
                return stops
            over = worker.leaving(time.monotonic()) or loop.time() > deadline
            if over and not self._fleet.held(worker):
                return []

    # -- posts ----------------------------------------------------------------------------------

    async def _stream(self, request: Request) -> Response:
        require_json_content_type(request)
        job = await self._own(request)
        if job is None:
            return JSON({"ok": True, "ignored": True})
        try:
            body = await read_object(request, self._chunk, "it", max_values=_MAX_RESULT_VALUES)
            chunk = encode_json(body.get("output"), "it")
            taken = await self._store.append_chunks(job.id, job.attempt, [chunk])
            failpoint("chunk-kept")
        except (InvalidRequest, PayloadTooLarge, StoreFull) as error:
            raise await self._fail(request, job, "stream", error) from None
        return JSON({"ok": True} if taken else {"ok": True, "ignored": True})

    async def _done(self, request: Request) -> Response:
        require_json_content_type(request)
        job = await self._own(request)
        if job is None:
            return JSON({"ok": True, "ignored": True})
        try:
            limit = self._runsync_result if job.sync else self._run_result
            body = await read_object(request, limit, "it", max_values=_MAX_RESULT_VALUES)
            output = encode_json(body["output"], "it") if "output" in body else None
            error_ = _text(body.get("error"))
        except (InvalidRequest, PayloadTooLarge) as error:
            raise await self._fail(request, job, "result", error) from None
        failpoint("result-come")
        if body.get("status") == "IN_PROGRESS":
            taken = await self._store.save_progress(job.id, job.attempt, output or b"null")
        else:
            if body.get("stopPod"):
                self._worker(request).refresh = True
            taken = await self._store.ack(job.id, job.attempt, output=output, error=error_)
        failpoint("result-kept")
        return JSON({"ok": True} if taken else {"ok": True, "ignored": True})

    async def _fail(
        self, request: Request, job: Job, what: str, error: Exception
    ) -> InvalidRequest:
        """End a job whose worker cannot say what it has to say; return what the worker is told.

        Over there a result that is too large is answered with 400, as it is here, and then just
        gone, the job COMPLETED (runpod-python#309).
        """
        said = f"the job's {what} could not be taken: {error}"
        logger.warning("job %s: %s", job.id, said, extra={"job_id": job.id})
        if await self._store.ack(job.id, job.attempt, error=said):
            # It may have hours of it left.
            self._store.request_stop(self._worker(request).key, job.id)
        return InvalidRequest(said)

    async def _ping(self, request: Request) -> Response:
        name = request.path_params["worker"]
        query = request.query_params
        if query.get("status") == "unhealthy":
            reason = f"{query.get('check')}: {query.get('reason')}"
            self._fleet.show_unhealthy(request.path_params["endpoint"], name, reason)
        else:
            self._fleet.ping(request.path_params["endpoint"], name, query.get("job_id", ""))
        return JSON({"ok": True})

    # -- who it is ------------------------------------------------------------------------------

    async def _polling(self, request: Request) -> Worker:
        """Return the worker of a long-poll; a refusal is held as well, or it comes back at once."""
        try:
            return self._worker(request)
        except HTTPException as error:
            if error.status_code != 429:
                await while_connected(request.receive, asyncio.sleep(_REFUSAL_S))
            raise

    def _worker(self, request: Request) -> Worker:
        """Return the worker that a call is from. Raises HTTPException."""
        endpoint, name = request.path_params["endpoint"], request.path_params["worker"]
        if worker_key(endpoint, name) == self._local:
            raise HTTPException(409, f"{name} is the server's own worker: choose another name")
        return self._fleet.worker(endpoint, name)

    async def _own(self, request: Request) -> Job | None:
        """Return the job that a worker speaks of, if it is still its own."""
        endpoint, name = request.path_params["endpoint"], request.path_params["worker"]
        job = await self._store.get(request.path_params["job_id"])
        if job is None or job.status.is_final or job.worker_id != worker_key(endpoint, name):
            return None
        self._worker(request).posted()
        return job


async def _held_open(
    request: Request, work: Coroutine[Any, Any, list[T]], give_back: Callable[[list[T]], None]
) -> list[T]:
    """Return what a long-poll brings, or give it back and raise ClientDisconnected."""
    found = await while_connected(request.receive, work, dispose=give_back)
    if found and await request.is_disconnected():
        # The worker left in the very moment in which there was something for it.
        give_back(found)
        raise ClientDisconnected
    return found


def _text(error: Any) -> str | None:
    """Return a worker's word for its failure, if there is any. Raises InvalidRequest."""
    if not error:
        return None
    return error if isinstance(error, str) else encode_json(error, "its error").decode()
