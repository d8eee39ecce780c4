"""A minimal server of RunPod's worker protocol, and worker processes that use it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from handler.settings.worker_settings import WorkerSettings
from tests.fork_server.client import PYTHON_PATH

ROOT = Path(__file__).parents[3]
HOLD_S = 2.0
WAIT_S = 30.0
API_KEY = "plugh-key"


@dataclass
class Job:
    """One job, with the outputs that its worker has posted and events to wait for."""

    id: str
    input: Any
    streamed: list[Any] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)
    streaming: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    # While set, the answers to this job's stream posts are held back.
    held: threading.Event = field(default_factory=threading.Event)

    def wait_streaming(self) -> None:
        """Wait for the first partial output."""
        assert self.streaming.wait(WAIT_S), f"{self.id} streamed nothing"

    def result(self) -> dict[str, Any]:
        """Wait for the one final post."""
        assert self.finished.wait(WAIT_S), f"{self.id} was never finished"
        (result,) = self.done
        return result

    def output(self) -> Any:
        """Wait for the output of a job that must succeed."""
        result = self.result()
        assert "error" not in result, result["error"]
        return result["output"]

    def error(self) -> str:
        """Wait for the error of a job that must fail."""
        error = self.result()["error"]
        assert type(error) is str
        assert "Traceback" not in error
        return error


class ControlPlane:
    """Serves job-take, job-take-batch, job-stop, job-stream, job-done and ping on loopback.

    The server runs on its own thread, so tests may block. Bodies that are not strict JSON are
    listed in `broken`.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.broken: list[str] = []
        self._numbers = itertools.count(1)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}/v2/test"
        paths = {
            "/job-take/{worker}": self._take,
            "/job-take-batch/{worker}": self._take_batch,
            "/job-stop/{worker}": self._stop,
            "/job-stream/{worker}/{job}": self._stream,
            "/job-done/{worker}/{job}": self._done,
            "/ping/{worker}": self._ping,
        }
        routes = [
            Route(f"/v2/test{path}", endpoint, methods=["GET", "POST"])
            for path, endpoint in paths.items()
        ]
        app = Starlette(routes=routes)
        options: dict[str, Any] = {"ws": "none", "lifespan": "off", "loop": "asyncio"}
        # Logging is configured per process, and other tests read uvicorn's loggers.
        config = uvicorn.Config(app, log_config=None, **options)
        self._server = uvicorn.Server(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(WAIT_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Job] = asyncio.Queue()
        self._stops: asyncio.Queue[str] = asyncio.Queue()
        self._ready.set()
        await self._server.serve([self._sock])

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(WAIT_S)
        self._sock.close()

    def submit(self, job_input: Any, *, hold: bool = False, job_id: str = "") -> Job:
        """Put a job in the queue."""
        job = Job(job_id or f"job-{next(self._numbers)}-u1", job_input)
        self.jobs[job.id] = job
        if hold:
            job.held.set()
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, job)
        return job

    def stop(self, *jobs: Job) -> None:
        """Tell the worker to stop jobs."""
        for job in jobs:
            self._loop.call_soon_threadsafe(self._stops.put_nowait, job.id)

    # -- the worker's side ----------------------------------------------------------------------

    async def _next(self, queue: asyncio.Queue[Any]) -> Any:
        # Without this hold, an idle worker would poll ten thousand times a second.
        try:
            return await asyncio.wait_for(queue.get(), HOLD_S)
        except TimeoutError:
            return None

    def _give(self, job: Job) -> dict[str, Any]:
        return {"id": job.id, "input": job.input, "delayTime": 1}

    async def _take(self, request: Request) -> Response:
        self.queries.append(("job-take", dict(request.query_params)))
        job = await self._next(self._waiting)
        return Response(status_code=204) if job is None else _json(self._give(job))

    async def _take_batch(self, request: Request) -> Response:
        self.queries.append(("job-take-batch", dict(request.query_params)))
        job = await self._next(self._waiting)
        if job is None:
            return Response(status_code=204)
        jobs = [self._give(job)]
        while len(jobs) < int(request.query_params["batch_size"]) and not self._waiting.empty():
            jobs.append(self._give(self._waiting.get_nowait()))
        return _json(jobs)

    async def _stop(self, request: Request) -> Response:
        job_id = await self._next(self._stops)
        if job_id is None:
            return Response(status_code=204)
        ids = [job_id]
        while not self._stops.empty():
            ids.append(self._stops.get_nowait())
        return JSONResponse({"jobsToStop": ids})

    async def _stream(self, request: Request) -> Response:
        job = self.jobs[request.path_params["job"]]
        job.streamed.append((await self._body(request))["output"])
        job.streaming.set()
        if job.held.is_set():
            await _until_disconnected(request)
        return JSONResponse({})

    async def _done(self, request: Request) -> Response:
        job = self.jobs[request.path_params["job"]]
        job.done.append(await self._body(request))
        job.finished.set()
        return JSONResponse({})

    async def _ping(self, request: Request) -> Response:
        self.queries.append(("ping", dict(request.query_params)))
        return Response()

    async def _body(self, request: Request) -> Any:
        body = await request.body()

        def refuse(constant: str) -> None:
            self.broken.append(f"{constant} in {body[:200]!r}")

        return json.loads(body, parse_constant=refuse)


def _json(content: Any) -> Response:
    # Python's json also sends NaN and lone surrogates, as a client of the platform may.
    return Response(json.dumps(content), media_type="application/json")


async def _until_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Worker:
    """An unmodified `python -m handler` in its own process group."""

    def __init__(self, plane: ControlPlane, folder: Path, **environment: str) -> None:
        self.plane = plane
        # The script of the worker's engine.
        self.script = Path()
        self._stdout = folder / "stdout"
        self._stderr = folder / "stderr"
        home = folder / "home"
        home.mkdir()
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "handler"],
                env=clean_environment(home, variables(plane.url) | environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The worker's process id, and its group's."""
        return self.process.pid

    @property
    def stdout(self) -> str:
        """The output of the worker and its SDK so far."""
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        """The log of the worker so far."""
        return self._stderr.read_text()

    def wait(self) -> int:
        """Wait for the worker to exit; return its exit code."""
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """Kill the process group: the SDK's heartbeat process outlives its parent."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)


def variables(url: str) -> dict[str, str]:
    """Return the environment variables that connect a worker to the platform."""
    return {
        "RUNPOD_WEBHOOK_GET_JOB": f"{url}/job-take/$ID?gpu=none",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=none",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=none",
        "RUNPOD_WEBHOOK_PING": f"{url}/ping/$RUNPOD_POD_ID?gpu=none",
        "RUNPOD_PING_INTERVAL": "1000",
        "RUNPOD_AI_API_KEY": API_KEY,
        "RUNPOD_POD_ID": "pod",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "RUNPOD_SKIP_GPU_CHECK": "true",
    }


def clean_environment(home: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return this process's environment without variables that configure a worker."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.lower() not in WorkerSettings.model_fields and not name.startswith("RUNPOD")
    }
    return {**inherited, "HOME": str(home), "PYTHONPATH": PYTHON_PATH, **environment}


def text_of(partials: Sequence[Any]) -> str:
    """Join the new text of a job's partial outputs."""
    return "".join(partial["choices"][0]["text"] for partial in partials)
