"""RunPod's client routes for the endpoint that the local worker serves."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.body import read_json
from emulator.disconnect import while_connected
from emulator.responses import JSON
from handler.errors import InvalidRequest, NotFound
from jobs import Job, MemoryJobStore

# RunPod's own default and bounds of ?wait=, in milliseconds.
_WAIT_MS, _MIN_WAIT_MS, _MAX_WAIT_MS = 90_000, 1_000, 300_000


class JobRoutes:
    """`/run`, `/runsync` and `/status`, short and under `/v2/{endpoint}`."""

    def __init__(self, store: MemoryJobStore, endpoint_id: str, max_body_bytes: int) -> None:
        self._store = store
        self._endpoint_id = endpoint_id
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        found = []
        for prefix in ("", f"/v2/{self._endpoint_id}"):
            found += [
                Route(f"{prefix}/run", self._run, methods=["POST"]),
                Route(f"{prefix}/runsync", self._runsync, methods=["POST"]),
                Route(f"{prefix}/status/{{job_id}}", self._status, methods=["GET", "POST"]),
            ]
        return found

    async def _run(self, request: Request) -> Response:
        job = await self._store.enqueue(await self._input(request))
        return JSON({"id": job.id, "status": job.status.value})

    async def _runsync(self, request: Request) -> Response:
        wait_s = _wait_s(request)
        job = await self._store.enqueue(await self._input(request), prefix="sync-")
        # The job goes on when the client leaves, as it does on RunPod; only the waiting ends.
        ended = await while_connected(request.receive, self._store.wait(job.id, wait_s))
        return JSON(describe(ended))

    async def _status(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        job = await self._store.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return JSON(describe(job))

    async def _input(self, request: Request) -> Any:
        body = await read_json(request, self._max_body_bytes)
        if body.get("input") is None:
            raise InvalidRequest("input must be given: the job's own parameters", "input")
        return body["input"]


def describe(job: Job) -> dict[str, Any]:
    """Return a job as RunPod's `/status` shows it."""
    shown: dict[str, Any] = {"id": job.id, "status": job.status.value}
    if job.delay_ms is not None:
        shown["delayTime"] = job.delay_ms
    if job.execution_ms is not None:
        shown["executionTime"] = job.execution_ms
    if job.error is not None:
        shown["error"] = job.error
    elif job.status.final:
        shown["output"] = job.output
    return shown


def _wait_s(request: Request) -> float:
    raw = request.query_params.get("wait")
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
