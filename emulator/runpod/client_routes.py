"""RunPod's client routes: `/v2/{endpoint}/…`, and the short forms for the default endpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.contextvars import bind_contextvars

from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.runpod import job_response
from emulator.runpod.job_request import new_job
from emulator.runpod.local_worker import NAME as LOCAL
from emulator.runpod.stream_route import JobStream
from emulator.runpod.webhook_loops import received_depth
from emulator.runpod.worker_registry import Fleet
from emulator.settings import EmulatorSettings
from handler.errors import InvalidRequest, NotFound
from handler.job_keys import find_job_warnings
from jobs import Job, JobStatus, JobStore, NewJob, NotRetryable
from jobs.failpoints import failpoint

logger = logging.getLogger(__name__)

# RunPod's own default and bounds of ?wait=, in milliseconds.
_WAIT_MS, _MIN_WAIT_MS, _MAX_WAIT_MS = 90_000, 1_000, 300_000
# So long a wait is not worth noticing that its client has left.
_SOON_S = 0.25
# Jobs in one answer of `/requests`.
_RECENT = 100

_Handler = Callable[[Request], Coroutine[Any, Any, Any]]


class JobRoutes:
    """What a client asks of a job queue: send, wait, look, stream, take back, run again."""

    def __init__(self, store: JobStore, fleet: Fleet, settings: EmulatorSettings) -> None:
        self._store = store
        self._fleet = fleet
        self._default = settings.endpoint_id
        self._policy = settings.policy_limits()
        self._targets = settings.outbound_policy()
        self._run_bytes = int(settings.max_run_mb * 1e6)
        self._runsync_bytes = int(settings.max_runsync_mb * 1e6)
        local = job_response.worker_key(settings.endpoint_id, LOCAL)
        self._stream = JobStream(store, settings.stream_hold_s, local_worker=local)

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        either = ["GET", "POST"]
        table: list[tuple[str, _Handler, list[str]]] = [
            ("/run", self._run, ["POST"]),
            ("/runsync", self._runsync, ["POST"]),
            ("/status/{job_id}", self._status, either),
            ("/status-sync/{job_id}", self._status_sync, either),
            ("/stream/{job_id}", self._read_stream, either),
            ("/cancel/{job_id}", self._cancel, ["POST"]),
            ("/retry/{job_id}", self._retry, ["POST"]),
            ("/purge-queue", self._purge, ["POST"]),
            ("/requests", self._requests, either),
            ("/requests/{job_id}", self._request, either),
        ]
        # /health without an endpoint is the server's own.
        with_endpoint = [*table, ("/health", self._health, either)]
        return [
            *(Route(f"/v2/{{endpoint}}{path}", f, methods=m) for path, f, m in with_endpoint),
            *(Route(path, f, methods=m) for path, f, m in table),
        ]

    async def _run(self, request: Request) -> Response:
        body = await read_json(request, self._run_bytes)
        new = self._new_job(request, body, sync=False)
        job = await self._enqueue(new)
        failpoint("run-accepted")
        return JSON(job_response.accepted(job) | _warnings(body))

    async def _runsync(self, request: Request) -> Response:
        wait_s = asked_wait_s(request)
        body = await read_json(request, self._runsync_bytes)
        new = self._new_job(request, body, sync=True)
        job = await self._enqueue(new)
        # The job goes on when the client leaves, as it does on RunPod; only the waiting ends.
        now = await self._waited(request, job.id, wait_s)
        if not now.status.is_final:
            await self._store.publish(job.id)
        failpoint("runsync-ended")
        return JSON(job_response.status(now) | _warnings(body))

    async def _status(self, request: Request) -> Response:
        return JSON(job_response.status(await self._job(request)))

    async def _status_sync(self, request: Request) -> Response:
        wait_s = asked_wait_s(request)
        job = await self._job(request)
        return JSON(job_response.status(await self._waited(request, job.id, wait_s)))

    async def _read_stream(self, request: Request) -> Any:
        return await self._stream.respond(request, await self._job(request))

    async def _cancel(self, request: Request) -> Response:
        job = await self._job(request)
        # Not in the store: what is taken back for a client that has left is nobody's to look up.
        await self._store.publish(job.id)
        return JSON(job_response.accepted(_kept(await self._store.cancel(job.id), job.id)))

    async def _retry(self, request: Request) -> Response:
        # A webhook that runs its own job again would be a loop too.
        received_depth(request.headers)
        job = await self._job(request)
        try:
            _kept(await self._store.retry(job.id), job.id)
        except NotRetryable as error:
            raise InvalidRequest(str(error)) from None
        # What `/run` says, though a worker may have it already.
        return JSON({"id": job.id, "status": JobStatus.IN_QUEUE.value})

    async def _purge(self, request: Request) -> Response:
        removed = await self._store.purge(self._endpoint(request))
        return JSON({"removed": removed, "status": "completed"})

    async def _health(self, request: Request) -> Response:
        endpoint = self._endpoint(request)
        stats = await self._store.stats(endpoint)
        count = stats.counts.get
        unhealthy = self._fleet.unhealthy(endpoint)
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
                "workers": self._fleet.counts(endpoint),
                **({"unhealthyWorkers": reasons} if reasons else {}),
            }
        )

    async def _requests(self, request: Request) -> Response:
        jobs = await self._store.list_recent_jobs(self._endpoint(request), _RECENT)
        return JSON({"requests": [job_response.status(job) for job in jobs]})

    async def _request(self, request: Request) -> Response:
        return JSON(job_response.request(await self._job(request)))

    def _new_job(self, request: Request, body: dict[str, Any], *, sync: bool) -> NewJob:
        return new_job(
            body,
            self._endpoint(request),
            self._policy,
            sync=sync,
            targets=self._targets,
            webhook_depth=received_depth(request.headers),
        )

    async def _enqueue(self, new: NewJob) -> Job:
        job = await self._store.enqueue(new)
        # What is logged of the call from here on, its own line too, says which job it made.
        bind_contextvars(job_id=job.id)
        return job

    def _endpoint(self, request: Request) -> str:
        endpoint: str = request.path_params.get("endpoint", self._default)
        return endpoint

    async def _job(self, request: Request) -> Job:
        job_id = request.path_params["job_id"]
        job = await self._store.get(job_id)
        if job is None or job.endpoint != self._endpoint(request):
            raise NotFound(f"there is no job {job_id}")
        return job

    async def _waited(self, request: Request, job_id: str, wait_s: float) -> Job:
        """Return a job when it has ended, or as it is when its client has waited long enough."""
        # Most jobs are over before looking after the client would have paid.
        soon_s = min(_SOON_S, wait_s)
        job = _kept(await self._store.wait(job_id, soon_s), job_id)
        if job.status.is_final:
            return job
        wait = self._store.wait(job_id, wait_s - soon_s)
        return _kept(await while_connected(request.receive, wait), job_id)


def _warnings(body: dict[str, Any]) -> dict[str, Any]:
    """Return `warnings` about the keys beside `input`, which no worker gets to see (R61)."""
    warnings = find_job_warnings(body)
    for warning in warnings:
        logger.warning("%s", warning)
    return {"warnings": list(warnings)} if warnings else {}


def _kept(job: Job | None, job_id: str) -> Job:
    if job is None:
        raise NotFound(f"the job {job_id} is not kept any more: its ttl is over")
    return job


def asked_wait_s(request: Request) -> float:
    """Return how long `?wait=` lets a call wait. Raises InvalidRequest."""
    # Asked first: reading no parameters takes as long as reading the body.
    raw = request.query_params.get("wait") if request.scope["query_string"] else None
    if raw is None:
        return _WAIT_MS / 1000
    # isdigit alone also takes "²", which int() does not, and more digits than it does.
    number = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 10 else 0
    if not _MIN_WAIT_MS <= number <= _MAX_WAIT_MS:
        raise InvalidRequest(
            f"wait must be a whole number of milliseconds from {_MIN_WAIT_MS} to {_MAX_WAIT_MS}, "
            f"got {raw!r}",
            "wait",
        )
    return number / 1000
