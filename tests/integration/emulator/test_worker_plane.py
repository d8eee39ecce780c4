"""RunPod's worker API over HTTP: dispatch, results, stops and lost workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import emulator.runpod.remote_worker
import emulator.runpod.worker_registry
import emulator.runpod.worker_routes
from emulator.settings.emulator_settings import EmulatorSettings
from jobs.memory import expiry
from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, Server, build_request_head, run_server
from tests.unit.emulator.events import DEADLINE_S
from tests.waiting import poll_until, run_ready_tasks

HOLD_S = 0.25
GRACE_S = 0.2
ACCEPTED = {"ok": True}
IGNORED = {"ok": True, "ignored": True}


class ManualWorker:
    """A worker that a test controls: one method per API call."""

    def __init__(self, client: httpx2.AsyncClient, name: str = "w1", endpoint: str = "ep") -> None:
        self.client = client
        self.name = name
        self.base = f"/v2/{endpoint}"

    def path(self, operation: str) -> str:
        return f"{self.base}/{operation}/{self.name}?gpu=none"

    async def poll_job(self, busy: str = "1") -> httpx2.Response:
        return await self.client.get(f"{self.path('job-take')}&job_in_progress={busy}")

    async def take_job(self) -> dict[str, Any]:
        response = await self.poll_job()
        assert response.status_code == 200
        job: dict[str, Any] = response.json()
        return job

    async def take_batch(self, size: object) -> httpx2.Response:
        query = {"batch_size": str(size), "job_in_progress": "0"}
        return await self.client.get(f"{self.base}/job-take-batch/{self.name}", params=query)

    async def poll_stops(self) -> httpx2.Response:
        return await self.client.get(self.path("job-stop"))

    async def ping(self, query: str = "") -> httpx2.Response:
        return await self.client.get(f"{self.path('ping')}&{query}")

    async def post(self, operation: str, job_id: str, body: Any) -> httpx2.Response:
        """Post as the SDK does, wrong content type and all."""
        content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return await self.client.post(
            f"{self.base}/{operation}/{self.name}/{job_id}?gpu=none&isStream=false",
            content=content,
            headers={
                "content-type": "application/x-www-form-urlencoded",
                "charset": "utf-8",
                # The id of an earlier job, which the SDK's session keeps.
                "x-request-id": "another-u1",
            },
        )

    async def post_result(self, job_id: str, body: Any) -> Any:
        response = await self.post("job-done", job_id, body)
        assert response.status_code == 200
        return response.json()


class WorkerApi:
    """A server, its client API, and workers that the test controls."""

    def __init__(self, server: Server, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.client = client

    def worker(self, name: str = "w1", endpoint: str = "ep") -> ManualWorker:
        return ManualWorker(self.client, name, endpoint)

    async def submit_job(self, job_input: Any = None, endpoint: str = "ep", **body: Any) -> str:
        job = {"input": job_input or {"n": 1}, **body}
        answer = await self.client.post(f"/v2/{endpoint}/run", json=job)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def get_status(self, job_id: str, endpoint: str = "ep") -> dict[str, Any]:
        job: dict[str, Any] = (await self.client.get(f"/v2/{endpoint}/status/{job_id}")).json()
        return job

    async def wait_for_status(
        self, job_id: str, status: str, endpoint: str = "ep"
    ) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            job = await self.get_status(job_id, endpoint)
            return job if job["status"] == status else None

        return await poll_until(reached)

    async def get_health(self) -> dict[str, Any]:
        health: dict[str, Any] = (await self.client.get("/v2/ep/health")).json()
        return health

    async def open_poll(self, worker: ManualWorker, operation: str = "job-stop") -> RawConnection:
        """Open a long-poll on its own connection and wait until the server holds it."""
        wire = await RawConnection.connect(self.server.port)
        known = len(self.server.tasks)
        await wire.send(build_request_head("GET", worker.path(operation)))
        await self.server.wait_until(lambda: len(self.server.tasks) > known)
        await run_ready_tasks()
        return wire

    async def hold_job_poll(self, name: str = "w1") -> asyncio.Task[httpx2.Response]:
        """Start a worker's poll for a job, and return when it is too late to give it a job.

        After a shutdown signal, the SDK discards the job that a poll returns, so the server gives
        jobs only to polls that have just started.
        """
        held = asyncio.create_task(self.worker(name).poll_job())
        await asyncio.sleep(0.3)
        return held

    async def assert_status_stays(
        self, job_id: str, status: str, seconds: float, endpoint: str = "ep"
    ) -> None:
        """Check that a job has not changed its status after a time in which it might have."""
        await asyncio.sleep(seconds)
        assert (await self.get_status(job_id, endpoint))["status"] == status


StartApi = Callable[..., Awaitable[WorkerApi]]


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits: most manual workers never open a stop poll."""
    monkeypatch.setattr(emulator.runpod.remote_worker, "_FIRST_STOP_POLL_TIMEOUT_S", 0.02)
    monkeypatch.setattr(emulator.runpod.worker_registry, "_MISSING_CONFIRM_S", 0.6)


@pytest.fixture
async def start_api(serve: Serve) -> AsyncIterator[StartApi]:
    """Return a function that starts servers without a local worker."""
    clients: list[httpx2.AsyncClient] = []

    async def make(script: Path | None = None, **settings: Any) -> WorkerApi:
        values = {"local_worker": False, "poll_hold_s": HOLD_S, "worker_grace_s": GRACE_S}
        server = await serve(script, **values | settings)
        clients.append(server.client())
        return WorkerApi(server, clients[-1])

    yield make
    for client in clients:
        await client.aclose()


# -- dispatch -------------------------------------------------------------------------------------


async def test_job_is_dispatched_unchanged(start_api: StartApi) -> None:
    api = await start_api()
    job_id = await api.submit_job({"é": [1, None]}, webhook="http://127.0.0.1:9/x")
    assert await api.worker().take_job() == {
        "id": job_id,
        "input": {"é": [1, None]},
        "webhook": "http://127.0.0.1:9/x",
    }
    job = await api.get_status(job_id)
    assert (job["status"], job["workerId"]) == ("IN_PROGRESS", "w1")
    assert (await api.worker().poll_job()).status_code == 204


async def test_poll_is_held_while_the_queue_is_empty(start_api: StartApi) -> None:
    api = await start_api()
    await api.submit_job(endpoint="other")
    started_at = time.monotonic()
    response = await api.worker().poll_job()
    assert (response.status_code, response.content) == (204, b"")
    # No less: a busy machine makes it more.
    assert time.monotonic() - started_at >= HOLD_S


async def test_new_job_ends_a_held_poll_and_goes_to_the_next_poll(start_api: StartApi) -> None:
    api = await start_api(poll_hold_s=20)
    held = await api.hold_job_poll()
    job_id = await api.submit_job()
    assert (await held).status_code == 204
    assert (await api.get_status(job_id))["status"] == "IN_QUEUE"
    assert (await api.worker().take_job())["id"] == job_id


async def test_job_stays_queued_when_no_polling_worker_returns(start_api: StartApi) -> None:
    api = await start_api(poll_hold_s=20)
    held = [await api.hold_job_poll(name) for name in ("w1", "w2")]
    job_id = await api.submit_job()
    async with asyncio.timeout(DEADLINE_S):
        assert [response.status_code for response in await asyncio.gather(*held)] == [204, 204]
    assert await api.get_status(job_id) == {"id": job_id, "status": "IN_QUEUE"}
    assert (await api.get_health())["jobs"]["retried"] == 0


async def test_take_batch_returns_up_to_its_size(start_api: StartApi) -> None:
    api = await start_api()
    assert (await api.worker().take_batch(3)).status_code == 204
    jobs = [await api.submit_job({"n": number}) for number in range(5)]
    first = (await api.worker().take_batch(3)).json()
    assert [job["id"] for job in first] == jobs[:3]
    assert [job["id"] for job in (await api.worker().take_batch(3)).json()] == jobs[3:]


async def test_take_batch_respects_the_response_size_limit(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.runpod.dispatcher._MAX_RESPONSE_BYTES", 1_500)
    api = await start_api()
    for _ in range(4):
        await api.submit_job({"x": "x" * 1000})
    assert [len((await api.worker().take_batch(4)).json()) for _ in range(2)] == [2, 2]


async def test_bad_batch_size_is_refused(
    start_api: StartApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_routes, "_REFUSAL_DELAY_S", 0.01)
    api = await start_api()
    await api.submit_job()
    for size in ("0", "-1", "x", "²", "1e2", ""):
        response = await api.worker().take_batch(size)
        assert response.status_code == 400
        assert read_reason(response.json()).startswith(
            f'batch_size must be at least 1, got "{size}"'
        )
    # The worker would repeat the call without a pause, and says nothing about it.
    assert caplog.text.count("a call of the worker w1 was refused: batch_size") == 1
    assert (await api.get_health())["jobs"]["inQueue"] == 1
    # RunPod's worker for embeddings asks for 3,000.
    assert len((await api.worker().take_batch("3000")).json()) == 1


async def test_wrong_methods_are_405(start_api: StartApi) -> None:
    api = await start_api()
    job_id = await api.submit_job()
    for method, operation in (
        ("HEAD", "job-take/w1"),
        ("POST", "job-take/w1"),
        ("HEAD", "job-take-batch/w1"),
        ("HEAD", "job-stop/w1"),
        ("GET", "job-done/w1/j"),
        ("GET", "job-stream/w1/j"),
        ("POST", "ping/w1"),
    ):
        assert (await api.client.request(method, f"/v2/ep/{operation}")).status_code == 405
    assert (await api.get_status(job_id))["status"] == "IN_QUEUE"


async def test_calls_under_the_local_workers_name_are_refused(
    start_api: StartApi, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_routes, "_REFUSAL_DELAY_S", 0.2)
    api = await start_api(script({"pieces": ["a", {"hang_s": 3600}]}), local_worker=True)
    worker = api.worker("local", "default")
    job_id = await api.submit_job({"prompt": "x"}, "default")
    await api.wait_for_status(job_id, "IN_PROGRESS", "default")
    for call in (worker.poll_job, worker.poll_stops):
        started_at = time.monotonic()
        response = await call()
        assert response.status_code == 409
        assert "local is the server's own worker" in read_reason(response.json())
        # Without the delay, the SDK would poll ten thousand times a second.
        assert time.monotonic() - started_at > 0.2
    for operation in ("job-done", "job-stream"):
        assert (await worker.post(operation, job_id, {"output": 1})).status_code == 409
    # A dropped connection does not end the job either.
    with await api.open_poll(worker):
        pass
    await api.assert_status_stays(job_id, "IN_PROGRESS", 3 * GRACE_S, "default")
    assert (await api.worker("local", "other").poll_job()).status_code == 204


async def test_poll_of_one_worker_too_many_is_429(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "MAX_WORKERS", 2)
    api = await start_api()
    # The SDK waits 5 s after a 429.
    for name, status in (("a", 204), ("b", 204), ("c", 429), ("a", 204)):
        assert (await api.worker(name).poll_job()).status_code == status


async def test_key_is_accepted_with_and_without_bearer(start_api: StartApi) -> None:
    api = await start_api(api_keys="secret")
    path = api.worker().path("job-take")
    for key, status in (("secret", 204), ("Bearer secret", 204), ("wrong", 401), ("", 401)):
        response = await api.client.get(path, headers={"authorization": key})
        assert response.status_code == status


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"output": {"é": 1}}, {"status": "COMPLETED", "output": {"é": 1}}),
        ({"output": None}, {"status": "COMPLETED", "output": None}),
        ({}, {"status": "COMPLETED", "output": None}),
        ({"error": "no"}, {"status": "FAILED", "error": "no"}),
        ({"error": {"a": 1}}, {"status": "FAILED", "error": '{"a":1}'}),
        ({"output": [1], "error": "no"}, {"status": "FAILED", "error": "no", "output": [1]}),
        ({"output": 1, "error": None}, {"status": "COMPLETED", "output": 1}),
        ({"output": 1, "stopPod": True}, {"status": "COMPLETED", "output": 1}),
    ],
)
async def test_posted_result_ends_the_job(
    start_api: StartApi, body: Any, expected: dict[str, Any]
) -> None:
    api = await start_api()
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    assert await worker.post_result(job_id, body) == ACCEPTED
    status = await api.get_status(job_id)
    assert {key: status.get(key) for key in expected} == expected
    assert ("error" in status) == ("error" in expected)
    # The SDK posts a result again when the response was lost.
    assert await worker.post_result(job_id, {"output": "other"}) == IGNORED
    assert await api.get_status(job_id) == status


async def test_input_and_result_of_a_job_may_have_the_same_number_of_values(
    start_api: StartApi,
) -> None:
    platform = await start_api(max_json_values=1_000, max_job_values=400_000)
    worker = platform.worker()
    job_id = await platform.submit_job()
    await worker.poll_job()
    embeddings = [[0.5] * 768 for _ in range(500)]
    assert await worker.post_result(job_id, {"output": embeddings}) == {"ok": True}
    assert (await platform.wait_for_status(job_id, "COMPLETED"))["output"] == embeddings
    accepted = await platform.client.post("/v2/ep/run", json={"input": {"rows": embeddings}})
    assert accepted.status_code == 200
    # A list costs more than a number.
    rows: list[list[int]] = [[]] * 100_000
    refused = await platform.client.post("/v2/ep/run", json={"input": {"rows": rows}})
    assert refused.status_code == 400
    assert "more than 400,000 JSON values (MAX_JOB_VALUES)" in refused.text


async def test_progress_that_is_too_large_is_dropped_and_the_job_goes_on(
    start_api: StartApi, caplog: pytest.LogCaptureFixture
) -> None:
    platform = await start_api(max_run_mb=0.01, max_job_values=1_000)
    worker = platform.worker()
    job_id = await platform.submit_job()
    await worker.poll_job()
    assert await worker.post_result(job_id, {"status": "IN_PROGRESS", "output": 1}) == ACCEPTED
    for output in ("x" * 20_000, [0] * 2_000):
        progress = {"status": "IN_PROGRESS", "output": output}
        assert await worker.post_result(job_id, progress) == IGNORED
    assert (await platform.get_status(job_id))["output"] == 1
    assert caplog.text.count("a progress update was dropped") == 2
    assert await worker.post_result(job_id, {"output": 2}) == ACCEPTED
    assert (await platform.get_status(job_id))["output"] == 2


async def test_refresh_of_a_manual_worker_is_logged(
    start_api: StartApi, caplog: pytest.LogCaptureFixture
) -> None:
    api = await start_api()
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    await worker.post_result(job_id, {"output": 1, "stopPod": True})
    assert "because its handler has refresh_worker; it was started by hand" in caplog.text


async def test_stream_and_progress(start_api: StartApi) -> None:
    api = await start_api()
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    for number in range(3):
        answer = await worker.post("job-stream", job_id, {"output": {"n": number, "é": "é"}})
        assert answer.json() == ACCEPTED
    stream = (await api.client.get(f"/v2/ep/stream/{job_id}")).json()
    assert stream == {
        "status": "IN_PROGRESS",
        "stream": [{"output": {"n": number, "é": "é"}} for number in range(3)],
    }
    assert await worker.post_result(job_id, {"status": "IN_PROGRESS", "output": "half"}) == ACCEPTED
    assert (await api.get_status(job_id))["output"] == "half"
    assert await worker.post_result(job_id, {"output": [1, 2]}) == ACCEPTED
    # runpod-python#250
    assert await worker.post_result(job_id, {"status": "IN_PROGRESS", "output": "late"}) == IGNORED
    assert (await worker.post("job-stream", job_id, {"output": "late"})).json() == IGNORED
    assert (await api.get_status(job_id))["output"] == [1, 2]


@pytest.mark.parametrize("operation", ["job-stream", "job-done"])
async def test_results_for_jobs_of_other_workers_are_ignored(
    start_api: StartApi, operation: str
) -> None:
    api = await start_api()
    job_id = await api.submit_job()

    async def check_ignored(worker: ManualWorker, posted_id: str) -> None:
        response = await worker.post(operation, posted_id, {"output": 1})
        assert (response.status_code, response.json()) == (200, IGNORED)

    await check_ignored(api.worker(), job_id)
    await check_ignored(api.worker(), "there-is-no-such-job-u1")
    # Posting a result does not register a worker.
    assert (await api.get_health())["workers"]["idle"] == 0
    await api.worker().take_job()
    await check_ignored(api.worker("w2"), job_id)
    await check_ignored(api.worker("w1", "other"), job_id)
    assert (await api.get_status(job_id))["status"] == "IN_PROGRESS"


UNREADABLE_JSON = b'{"output":' + b"[" * 5000 + b"]" * 5000 + b"}"
# The JSON reader accepts this depth, the JSON writer does not.
UNWRITABLE_JSON = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize(
    ("operation", "body", "message"),
    [
        ("job-done", b'{"output": NaN}', "NaN and Infinity are no JSON"),
        ("job-done", b'{"output": [1e3, -Infinity]}', "NaN and Infinity are no JSON"),
        ("job-done", b"", "it is not JSON"),
        ("job-done", b'{"output": "\xff"}', "it is not JSON"),
        ("job-done", UNREADABLE_JSON, "it is not JSON"),
        ("job-done", b'{"output": %b}' % UNWRITABLE_JSON, "it is nested too deeply"),
        ("job-done", b'{"error": %b}' % UNWRITABLE_JSON, "its error is nested too deeply"),
        ("job-stream", b'{"output": %b}' % UNWRITABLE_JSON, "it is nested too deeply"),
        ("job-done", b"[1]", "it must be a JSON object"),
        ("job-done", b'{"output": "' + b"x" * 30_000 + b'"}', "larger than 0.02 MB"),
        ("job-stream", b'{"output": NaN}', "NaN and Infinity are no JSON"),
        ("job-stream", b'"x"', "it must be a JSON object"),
        ("job-stream", b'{"output": "' + b"x" * 1500 + b'"}', "larger than 0.001 MB"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_invalid_result_fails_the_job_and_stops_it(
    start_api: StartApi, operation: str, body: bytes, message: str
) -> None:
    api = await start_api(max_run_mb=0.02, max_chunk_mb=0.001)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    stopping = asyncio.create_task(worker.poll_stops())
    response = await worker.post(operation, job_id, body)
    # RunPod's cloud also returns 400; the SDK does not retry after it.
    assert response.status_code == 400
    job = await api.get_status(job_id)
    assert job["status"] == "FAILED"
    assert job["error"] == read_reason(response.json())
    assert message in job["error"]
    assert (await stopping).json() == {"jobsToStop": [job_id]}
    assert await worker.post_result(job_id, {"output": 1}) == IGNORED


async def test_runsync_has_its_own_size_limit(start_api: StartApi) -> None:
    api = await start_api(max_run_mb=0.001, max_runsync_mb=0.002)
    waiting = asyncio.create_task(api.client.post("/v2/ep/runsync", json={"input": {}}))
    worker = api.worker()
    job = await worker.poll_job()
    while job.status_code == 204:
        job = await worker.poll_job()
    await worker.post_result(job.json()["id"], {"output": "x" * 1500})
    assert (await waiting).json()["output"] == "x" * 1500


# -- stops ----------------------------------------------------------------------------------------


@pytest.mark.long_except("False")
@pytest.mark.parametrize("started", [True, False])
async def test_cancel_reaches_the_worker(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    if started:
        monkeypatch.setattr(expiry, "MAX_START_DELAY_S", 0.0)
    api = await start_api()
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    await api.server.wait_until_no_requests()
    stopping = asyncio.create_task(worker.poll_stops())
    await api.server.wait_until(lambda: len(api.server.tasks) == 1)
    await api.client.post(f"/v2/ep/cancel/{job_id}")
    assert (await stopping).json() == {"jobsToStop": [job_id]}
    assert await worker.post_result(job_id, {"output": 1}) == IGNORED
    assert (await api.get_status(job_id))["status"] == "CANCELLED"
    if not started:
        # The worker may not have had the job yet when it received the first stop.
        assert (await worker.poll_stops()).json() == {"jobsToStop": [job_id]}
    assert (await worker.poll_stops()).status_code == 204


async def test_ping_that_lists_a_cancelled_job_repeats_its_stop(
    start_api: StartApi,
) -> None:
    api = await start_api(poll_hold_s=0.1)
    worker, other = api.worker(), api.worker("other")
    cancelled, running = await api.submit_job(), await api.submit_job()
    assert [(await worker.take_job())["id"] for _ in range(2)] == [cancelled, running]
    await api.client.post(f"/v2/ep/cancel/{cancelled}")
    # The SDK ignores these if it has not started the job.
    for _ in range(2):
        assert (await worker.poll_stops()).json() == {"jobsToStop": [cancelled]}
    assert (await worker.ping(f"job_id={running},{cancelled},unknown")).status_code == 200
    assert (await worker.poll_stops()).json() == {"jobsToStop": [cancelled]}
    # A worker that never polled for jobs receives no stops.
    await other.ping(f"job_id={cancelled}")
    assert (await other.poll_stops()).status_code == 204
    assert (await api.get_status(running))["status"] == "IN_PROGRESS"


async def test_job_that_runs_too_long_is_stopped(start_api: StartApi) -> None:
    api = await start_api(min_execution_timeout_ms=1)
    worker = api.worker()
    job_id = await api.submit_job(policy={"executionTimeout": 100})
    await worker.take_job()
    assert (await worker.poll_stops()).json() == {"jobsToStop": [job_id]}
    assert (await api.get_status(job_id))["status"] == "TIMED_OUT"


async def test_stop_poll_ends_when_its_worker_stops_polling(start_api: StartApi) -> None:
    # While it shuts down, the SDK waits for this response and does not poll for jobs.
    api = await start_api()
    worker = api.worker()
    await worker.poll_job()
    # While its worker polls for jobs, a stop poll is held for 80 s: longer than the client waits.
    assert (await worker.poll_stops()).status_code == 204


# -- losses ---------------------------------------------------------------------------------------


@asynccontextmanager
async def pinging(worker: ManualWorker) -> AsyncIterator[None]:
    """Let a worker send pings without a list of its jobs."""

    async def ping_repeatedly() -> None:
        while True:
            await worker.ping()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(ping_repeatedly())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_dead_worker_is_detected_by_its_broken_connection(start_api: StartApi) -> None:
    api = await start_api()
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    with await api.open_poll(worker) as wire:
        # The stop poll is held while the worker has the job.
        await api.assert_status_stays(job_id, "IN_PROGRESS", 2 * HOLD_S + 2 * GRACE_S)
        wire.close(reset=True)
    died_at = time.monotonic()
    async with pinging(worker):
        await api.wait_for_status(job_id, "IN_QUEUE")
    assert GRACE_S <= time.monotonic() - died_at
    health = await api.get_health()
    assert health["jobs"]["retried"] == 1
    assert health["workers"]["running"] == health["workers"]["idle"] == 0
    assert await worker.post_result(job_id, {"output": "late"}) == IGNORED
    other = api.worker("w2")
    assert (await other.take_job())["id"] == job_id
    assert await worker.post_result(job_id, {"output": "late"}) == IGNORED
    assert await other.post_result(job_id, {"output": "in time"}) == ACCEPTED
    assert (await api.get_status(job_id))["output"] == "in time"


async def test_worker_that_comes_back_in_time_keeps_its_job(start_api: StartApi) -> None:
    grace_s = 0.6
    api = await start_api(worker_grace_s=grace_s)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    with await api.open_poll(worker) as wire:
        wire.close(reset=True)
    await api.server.wait_until_no_requests()
    with await api.open_poll(worker):
        await api.assert_status_stays(job_id, "IN_PROGRESS", 2 * grace_s)
        assert await worker.post_result(job_id, {"output": 1}) == ACCEPTED


async def test_open_poll_keeps_the_lease_without_pings(start_api: StartApi) -> None:
    api = await start_api(lease_s=1.2)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    with await api.open_poll(worker):
        await api.assert_status_stays(job_id, "IN_PROGRESS", 2)


async def test_silent_worker_loses_its_job(start_api: StartApi) -> None:
    api = await start_api(lease_s=1.5)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    async with pinging(worker):
        await api.assert_status_stays(job_id, "IN_PROGRESS", 2)
    await api.wait_for_status(job_id, "IN_QUEUE")


@pytest.mark.long_except("settings1-2")
@pytest.mark.parametrize(("settings", "losses"), [({"max_losses": 1}, 1), ({"max_losses": 2}, 2)])
async def test_job_that_is_lost_too_often_fails(
    start_api: StartApi, settings: dict[str, Any], losses: int
) -> None:
    api = await start_api(**settings)
    job_id = await api.submit_job()
    job: dict[str, Any] = {}
    for number in range(1, losses + 1):
        worker = api.worker(f"w{number}")
        await worker.take_job()
        with await api.open_poll(worker):
            pass
        job = await api.wait_for_status(job_id, "FAILED" if number == losses else "IN_QUEUE")
    assert job["error"].endswith("the last time: its worker went away")


async def test_aborted_job_poll_takes_no_job(start_api: StartApi) -> None:
    api = await start_api(poll_hold_s=20)
    with await api.open_poll(api.worker(), "job-take"):
        pass
    job_id = await api.submit_job()
    await api.assert_status_stays(job_id, "IN_QUEUE", 2 * GRACE_S)
    assert await api.get_status(job_id) == {"id": job_id, "status": "IN_QUEUE"}
    assert (await api.worker("w2").take_job())["id"] == job_id


async def test_job_has_failed_when_its_worker_reports_no_job_in_progress(
    start_api: StartApi,
) -> None:
    # The worker could not deliver its result.
    api = await start_api(poll_hold_s=0.1)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    with await api.open_poll(worker):
        assert (await worker.poll_job("1")).status_code == 204
        await api.assert_status_stays(job_id, "IN_PROGRESS", 0.9)
        assert (await worker.poll_job("0")).status_code == 204
        assert (await api.get_status(job_id))["status"] == "IN_PROGRESS"
        await api.wait_for_status(job_id, "FAILED")
        error = (await api.get_status(job_id))["error"]
        assert error == "the job failed: its worker has stopped running it and sent no result"


async def test_job_is_requeued_when_its_worker_was_restarted(start_api: StartApi) -> None:
    api = await start_api(poll_hold_s=0.1)
    worker = api.worker()
    job_id = await api.submit_job()
    await worker.take_job()
    with await api.open_poll(worker):
        pass
    with await api.open_poll(worker):
        assert (await worker.poll_job("0")).status_code == 204
        await api.wait_for_status(job_id, "IN_QUEUE")
        assert (await worker.take_job())["id"] == job_id


async def test_job_missing_from_its_workers_pings_has_failed(start_api: StartApi) -> None:
    api = await start_api(poll_hold_s=0.1)
    worker = api.worker()
    kept, lost = await api.submit_job(), await api.submit_job()
    assert [(await worker.take_job())["id"] for _ in range(2)] == [kept, lost]
    with await api.open_poll(worker):
        await worker.ping(f"job_id={kept}")
        assert (await worker.poll_job("1")).status_code == 204
        await worker.ping(f"job_id={kept}")
        await api.wait_for_status(lost, "FAILED")
        assert (await api.get_status(kept))["status"] == "IN_PROGRESS"


async def test_second_worker_with_the_same_name_does_not_lose_the_jobs_of_the_first(
    start_api: StartApi,
) -> None:
    api = await start_api(poll_hold_s=0.1)
    first, second = api.worker(), api.worker()
    job_id = await api.submit_job()
    await first.take_job()
    with await api.open_poll(first), await api.open_poll(second):
        # Each poll is held for a tenth of a second.
        for _ in range(12):
            assert (await second.poll_job("0")).status_code == 204
        assert (await api.get_status(job_id))["status"] == "IN_PROGRESS"
        assert await first.post_result(job_id, {"output": 1}) == ACCEPTED


async def test_worker_without_stop_polls_receives_jobs(start_api: StartApi) -> None:
    api = await start_api()
    worker = api.worker()
    for _ in range(3):
        job_id = await api.submit_job()
        assert (await worker.take_job())["id"] == job_id
        await worker.post_result(job_id, {"output": 1})


async def test_job_is_dispatched_only_to_a_worker_with_an_open_stop_poll(
    start_api: StartApi,
) -> None:
    # The worker may block once it has a job; the SDK pauses for a second between its polls.
    api = await start_api(poll_hold_s=5)
    worker = api.worker()
    with await api.open_poll(worker):
        pass
    job_id = await api.submit_job()
    taking = asyncio.create_task(worker.take_job())
    await api.assert_status_stays(job_id, "IN_QUEUE", 0.5)
    with await api.open_poll(worker):
        assert (await taking)["id"] == job_id


async def test_health_counts_workers(start_api: StartApi) -> None:
    api = await start_api()

    async def counts() -> tuple[int, int]:
        workers = (await api.get_health())["workers"]
        return workers["idle"], workers["running"]

    worker = api.worker()
    # Pings alone do not register a worker.
    await worker.ping()
    assert await counts() == (0, 0)
    await worker.poll_job()
    assert await counts() == (1, 0)
    job_id = await api.submit_job()
    await worker.take_job()
    assert await counts() == (0, 1)
    await worker.post_result(job_id, {"output": 1})
    assert await counts() == (1, 0)


async def test_unhealthy_worker_is_logged(
    start_api: StartApi, caplog: pytest.LogCaptureFixture
) -> None:
    api = await start_api()
    response = await api.worker().ping("status=unhealthy&check=_gpu&reason=no+gpu")
    assert response.status_code == 200
    assert "worker w1 is unhealthy: _gpu: no gpu" in caplog.text


async def test_result_is_accepted_after_a_restart(start_api: StartApi, tmp_path: Path) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    settings = EmulatorSettings(
        engine="scripted", engine_isolation="thread", local_worker=False, job_db=database
    )
    async with run_server(settings) as server, server.client() as client:
        first = WorkerApi(server, client)
        jobs = [await first.submit_job({"n": number}) for number in range(3)]
        assert len((await first.worker().take_batch(2)).json()) == 2
        await first.worker().post("job-stream", jobs[0], {"output": "a"})
    second = await start_api(job_db=database, lease_s=0.8)
    worker = second.worker()
    assert [(await second.get_status(job_id))["status"] for job_id in jobs] == [
        "IN_PROGRESS",
        "IN_PROGRESS",
        "IN_QUEUE",
    ]
    # The worker's event loop is blocked: only its pings keep the lease.
    async with pinging(worker):
        await second.assert_status_stays(jobs[0], "IN_PROGRESS", 1.2)
    await worker.post("job-stream", jobs[0], {"output": "b"})
    assert await worker.post_result(jobs[0], {"output": ["a", "b"]}) == ACCEPTED
    assert (await second.get_status(jobs[0]))["output"] == ["a", "b"]
    await second.wait_for_status(jobs[1], "IN_QUEUE")
