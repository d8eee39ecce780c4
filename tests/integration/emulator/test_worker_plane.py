"""The worker's side of RunPod over HTTP: what is handed out, what is taken, and who is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
from tests.waiting import poll_until

HOLD_S = 0.25
GRACE_S = 0.2
TAKEN = {"ok": True}
IGNORED = {"ok": True, "ignored": True}


class Worker:
    """A worker by hand: each of its calls is one method."""

    def __init__(self, client: httpx2.AsyncClient, name: str = "w1", endpoint: str = "ep") -> None:
        self.client = client
        self.name = name
        self.base = f"/v2/{endpoint}"

    def path(self, what: str) -> str:
        return f"{self.base}/{what}/{self.name}?gpu=none"

    async def take(self, busy: str = "1") -> httpx2.Response:
        return await self.client.get(f"{self.path('job-take')}&job_in_progress={busy}")

    async def taken(self) -> dict[str, Any]:
        response = await self.take()
        assert response.status_code == 200
        job: dict[str, Any] = response.json()
        return job

    async def batch(self, size: object) -> httpx2.Response:
        query = {"batch_size": str(size), "job_in_progress": "0"}
        return await self.client.get(f"{self.base}/job-take-batch/{self.name}", params=query)

    async def stop(self) -> httpx2.Response:
        return await self.client.get(self.path("job-stop"))

    async def ping(self, query: str = "") -> httpx2.Response:
        return await self.client.get(f"{self.path('ping')}&{query}")

    async def post(self, what: str, job_id: str, body: Any) -> httpx2.Response:
        """Post as the SDK does, wrong content type and all."""
        content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return await self.client.post(
            f"{self.base}/{what}/{self.name}/{job_id}?gpu=none&isStream=false",
            content=content,
            headers={
                "content-type": "application/x-www-form-urlencoded",
                "charset": "utf-8",
                # Of another job: it sticks to the SDK's session.
                "x-request-id": "another-u1",
            },
        )

    async def done(self, job_id: str, body: Any) -> Any:
        response = await self.post("job-done", job_id, body)
        assert response.status_code == 200
        return response.json()


class Plane:
    """A server, its clients' side, and workers by hand."""

    def __init__(self, server: Server, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.client = client

    def worker(self, name: str = "w1", endpoint: str = "ep") -> Worker:
        return Worker(self.client, name, endpoint)

    async def run(self, given: Any = None, endpoint: str = "ep", **body: Any) -> str:
        job = {"input": given or {"n": 1}, **body}
        answer = await self.client.post(f"/v2/{endpoint}/run", json=job)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def status(self, job_id: str, endpoint: str = "ep") -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"/v2/{endpoint}/status/{job_id}")).json()
        return found

    async def becomes(self, job_id: str, status: str, endpoint: str = "ep") -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            found = await self.status(job_id, endpoint)
            return found if found["status"] == status else None

        return await poll_until(reached)

    async def health(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/v2/ep/health")).json()
        return found

    async def open_poll(self, worker: Worker, what: str = "job-stop") -> RawConnection:
        """Open a long-poll that can be broken off, and see that it is there."""
        wire = await RawConnection.connect(self.server.port)
        known = len(self.server.tasks)
        await wire.send(build_request_head("GET", worker.path(what)))
        await self.server.wait_until(lambda: len(self.server.tasks) > known)
        await asyncio.sleep(0.02)
        return wire


MakePlane = Callable[..., Awaitable[Plane]]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers by hand mostly make no call for stops, and each would be waited for."""
    monkeypatch.setattr(emulator.runpod.remote_worker, "_FIRST_STOP_POLL_TIMEOUT_S", 0.02)
    monkeypatch.setattr(emulator.runpod.worker_registry, "_MISSING_CONFIRM_S", 0.6)


@pytest.fixture
async def plane(serve: Serve) -> AsyncIterator[MakePlane]:
    """Starts servers without a local worker."""
    clients: list[httpx2.AsyncClient] = []

    async def make(script: Path | None = None, **settings: Any) -> Plane:
        values = {"local_worker": False, "poll_hold_s": HOLD_S, "worker_grace_s": GRACE_S}
        server = await serve(script, **values | settings)
        clients.append(server.client())
        return Plane(server, clients[-1])

    yield make
    for client in clients:
        await client.aclose()


# -- handing out ----------------------------------------------------------------------------------


async def test_job_is_handed_out_as_it_was_sent(plane: MakePlane) -> None:
    at = await plane()
    job_id = await at.run({"é": [1, None]}, webhook="http://127.0.0.1:9/x")
    assert await at.worker().taken() == {
        "id": job_id,
        "input": {"é": [1, None]},
        "webhook": "http://127.0.0.1:9/x",
    }
    shown = await at.status(job_id)
    assert (shown["status"], shown["workerId"]) == ("IN_PROGRESS", "w1")
    assert (await at.worker().take()).status_code == 204


async def test_call_is_held_while_there_is_nothing(plane: MakePlane) -> None:
    at = await plane()
    await at.run(endpoint="other")
    began = time.monotonic()
    response = await at.worker().take()
    assert (response.status_code, response.content) == (204, b"")
    assert HOLD_S <= time.monotonic() - began < 20 * HOLD_S


async def test_job_that_turns_up_ends_a_held_call_and_is_for_the_next(plane: MakePlane) -> None:
    # The SDK never runs what it is given by a call that was open when it was told to end.
    at = await plane(poll_hold_s=20)
    held = asyncio.create_task(at.worker().take())
    await asyncio.sleep(0.3)
    job_id = await at.run()
    assert (await held).status_code == 204
    assert (await at.status(job_id))["status"] == "IN_QUEUE"
    assert (await at.worker().taken())["id"] == job_id


async def test_job_of_a_worker_that_does_not_come_back_is_for_another(plane: MakePlane) -> None:
    at = await plane(poll_hold_s=20)
    held = [asyncio.create_task(at.worker(name).take()) for name in ("w1", "w2")]
    await asyncio.sleep(0.3)
    job_id = await at.run()
    async with asyncio.timeout(DEADLINE_S):
        assert [response.status_code for response in await asyncio.gather(*held)] == [204, 204]
    assert await at.status(job_id) == {"id": job_id, "status": "IN_QUEUE"}
    assert (await at.health())["jobs"]["retried"] == 0


async def test_batch(plane: MakePlane) -> None:
    at = await plane()
    assert (await at.worker().batch(3)).status_code == 204
    jobs = [await at.run({"n": number}) for number in range(5)]
    first = (await at.worker().batch(3)).json()
    assert [job["id"] for job in first] == jobs[:3]
    assert [job["id"] for job in (await at.worker().batch(3)).json()] == jobs[3:]


async def test_batch_is_no_larger_than_an_answer_may_be(
    plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.runpod.dispatcher._MAX_RESPONSE_BYTES", 1_500)
    at = await plane()
    for _ in range(4):
        await at.run({"x": "x" * 1000})
    assert [len((await at.worker().batch(4)).json()) for _ in range(2)] == [2, 2]


async def test_bad_batch_size_is_refused(plane: MakePlane) -> None:
    at = await plane()
    await at.run()
    for size in ("0", "-1", "x", "1001", "²", "1e2", ""):
        response = await at.worker().batch(size)
        assert response.status_code == 400
        assert read_reason(response.json()).startswith(
            f'batch_size must be from 1 to 1000, got "{size}"'
        )
    assert (await at.health())["jobs"]["inQueue"] == 1


async def test_other_methods_do_nothing(plane: MakePlane) -> None:
    at = await plane()
    job_id = await at.run()
    for method, what in (
        ("HEAD", "job-take/w1"),
        ("POST", "job-take/w1"),
        ("HEAD", "job-take-batch/w1"),
        ("HEAD", "job-stop/w1"),
        ("GET", "job-done/w1/j"),
        ("GET", "job-stream/w1/j"),
        ("POST", "ping/w1"),
    ):
        assert (await at.client.request(method, f"/v2/ep/{what}")).status_code == 405
    assert (await at.status(job_id))["status"] == "IN_QUEUE"


async def test_local_workers_name_is_its_own(
    plane: MakePlane, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_routes, "_REFUSAL_DELAY_S", 0.2)
    at = await plane(script({"pieces": ["a", {"hang_s": 3600}]}), local_worker=True)
    worker = at.worker("local", "default")
    job_id = await at.run({"prompt": "x"}, "default")
    await at.becomes(job_id, "IN_PROGRESS", "default")
    for call in (worker.take, worker.stop):
        began = time.monotonic()
        response = await call()
        assert response.status_code == 409
        assert "local is the server's own worker" in read_reason(response.json())
        # Or the SDK would be back ten thousand times a second.
        assert time.monotonic() - began > 0.2
    for what in ("job-done", "job-stream"):
        assert (await worker.post(what, job_id, {"output": 1})).status_code == 409
    # Nor does it end by a call that breaks off.
    with await at.open_poll(worker):
        pass
    await asyncio.sleep(3 * GRACE_S)
    assert (await at.status(job_id, "default"))["status"] == "IN_PROGRESS"
    assert (await at.worker("local", "other").take()).status_code == 204


async def test_more_workers_than_are_kept_wait(
    plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "MAX_WORKERS", 2)
    at = await plane()
    # The SDK waits 5 s after a 429.
    for name, status in (("a", 204), ("b", 204), ("c", 429), ("a", 204)):
        assert (await at.worker(name).take()).status_code == status


async def test_raw_key_opens_the_plane(plane: MakePlane) -> None:
    at = await plane(api_keys="secret")
    path = at.worker().path("job-take")
    for key, status in (("secret", 204), ("Bearer secret", 204), ("wrong", 401), ("", 401)):
        response = await at.client.get(path, headers={"authorization": key})
        assert response.status_code == status


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "shown"),
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
async def test_result(plane: MakePlane, body: Any, shown: dict[str, Any]) -> None:
    at = await plane()
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    assert await worker.done(job_id, body) == TAKEN
    status = await at.status(job_id)
    assert {key: status.get(key) for key in shown} == shown
    assert ("error" in status) == ("error" in shown)
    # Said again, as the SDK does when the answer was lost.
    assert await worker.done(job_id, {"output": "other"}) == IGNORED
    assert await at.status(job_id) == status


async def test_result_may_have_more_values_than_a_request(plane: MakePlane) -> None:
    platform = await plane(max_json_values=1_000)
    worker = platform.worker()
    job_id = await platform.run()
    await worker.take()
    embeddings = [[0.5] * 768 for _ in range(500)]
    assert await worker.done(job_id, {"output": embeddings}) == {"ok": True}
    assert (await platform.becomes(job_id, "COMPLETED"))["output"] == embeddings
    refused = await platform.client.post("/v2/ep/run", json={"input": {"rows": embeddings}})
    assert refused.status_code == 400
    assert "MAX_JSON_VALUES" in refused.text


async def test_worker_by_hand_that_asks_to_be_replaced_is_named_in_the_log(
    plane: MakePlane, caplog: pytest.LogCaptureFixture
) -> None:
    at = await plane()
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    await worker.done(job_id, {"output": 1, "stopPod": True})
    assert "because its handler has refresh_worker; it was started by hand" in caplog.text


async def test_stream_and_progress(plane: MakePlane) -> None:
    at = await plane()
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    for number in range(3):
        answer = await worker.post("job-stream", job_id, {"output": {"n": number, "é": "é"}})
        assert answer.json() == TAKEN
    stream = (await at.client.get(f"/v2/ep/stream/{job_id}")).json()
    assert stream == {
        "status": "IN_PROGRESS",
        "stream": [{"output": {"n": number, "é": "é"}} for number in range(3)],
    }
    assert await worker.done(job_id, {"status": "IN_PROGRESS", "output": "half"}) == TAKEN
    assert (await at.status(job_id))["output"] == "half"
    assert await worker.done(job_id, {"output": [1, 2]}) == TAKEN
    # runpod-python#250
    assert await worker.done(job_id, {"status": "IN_PROGRESS", "output": "late"}) == IGNORED
    assert (await worker.post("job-stream", job_id, {"output": "late"})).json() == IGNORED
    assert (await at.status(job_id))["output"] == [1, 2]


@pytest.mark.parametrize("what", ["job-stream", "job-done"])
async def test_what_is_said_of_others_jobs_is_ignored(plane: MakePlane, what: str) -> None:
    at = await plane()
    job_id = await at.run()

    async def ignored(worker: Worker, named: str) -> None:
        response = await worker.post(what, named, {"output": 1})
        assert (response.status_code, response.json()) == (200, IGNORED)

    await ignored(at.worker(), job_id)
    await ignored(at.worker(), "there-is-no-such-job-u1")
    # It has not become a worker by that.
    assert (await at.health())["workers"]["idle"] == 0
    await at.worker().taken()
    await ignored(at.worker("w2"), job_id)
    await ignored(at.worker("w1", "other"), job_id)
    assert (await at.status(job_id))["status"] == "IN_PROGRESS"


DEEP = b'{"output":' + b"[" * 5000 + b"]" * 5000 + b"}"
# Which is read, and cannot be written again.
DEEPISH = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize(
    ("what", "body", "said"),
    [
        ("job-done", b'{"output": NaN}', "NaN and Infinity are no JSON"),
        ("job-done", b'{"output": [1e3, -Infinity]}', "NaN and Infinity are no JSON"),
        ("job-done", b"", "it is not JSON"),
        ("job-done", b'{"output": "\xff"}', "it is not JSON"),
        ("job-done", DEEP, "it is not JSON"),
        ("job-done", b'{"output": %b}' % DEEPISH, "it is nested too deeply"),
        ("job-done", b'{"error": %b}' % DEEPISH, "its error is nested too deeply"),
        ("job-stream", b'{"output": %b}' % DEEPISH, "it is nested too deeply"),
        ("job-done", b"[1]", "it must be a JSON object"),
        ("job-done", b'{"output": "' + b"x" * 30_000 + b'"}', "larger than 0.02 MB"),
        ("job-stream", b'{"output": NaN}', "NaN and Infinity are no JSON"),
        ("job-stream", b'"x"', "it must be a JSON object"),
        ("job-stream", b'{"output": "' + b"x" * 1500 + b'"}', "larger than 0.001 MB"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_cannot_be_taken_fails_the_job_and_stops_it(
    plane: MakePlane, what: str, body: bytes, said: str
) -> None:
    at = await plane(max_run_mb=0.02, max_chunk_mb=0.001)
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    stopping = asyncio.create_task(worker.stop())
    response = await worker.post(what, job_id, body)
    # What the cloud answers; the SDK does not try again then.
    assert response.status_code == 400
    shown = await at.status(job_id)
    assert shown["status"] == "FAILED"
    assert shown["error"] == read_reason(response.json())
    assert said in shown["error"]
    assert (await stopping).json() == {"jobsToStop": [job_id]}
    assert await worker.done(job_id, {"output": 1}) == IGNORED


async def test_runsync_has_a_limit_of_its_own(plane: MakePlane) -> None:
    at = await plane(max_run_mb=0.001, max_runsync_mb=0.002)
    waiting = asyncio.create_task(at.client.post("/v2/ep/runsync", json={"input": {}}))
    worker = at.worker()
    job = await worker.take()
    while job.status_code == 204:
        job = await worker.take()
    await worker.done(job.json()["id"], {"output": "x" * 1500})
    assert (await waiting).json()["output"] == "x" * 1500


# -- stops ----------------------------------------------------------------------------------------


@pytest.mark.long_except("False")
@pytest.mark.parametrize("begun", [True, False])
async def test_cancel_reaches_the_worker(
    plane: MakePlane, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    if begun:
        monkeypatch.setattr(expiry, "MAX_START_DELAY_S", 0.0)
    at = await plane()
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.05)
    await at.client.post(f"/v2/ep/cancel/{job_id}")
    assert (await stopping).json() == {"jobsToStop": [job_id]}
    assert await worker.done(job_id, {"output": 1}) == IGNORED
    assert (await at.status(job_id))["status"] == "CANCELLED"
    if not begun:
        # It may not have known the job yet.
        assert (await worker.stop()).json() == {"jobsToStop": [job_id]}
    assert (await worker.stop()).status_code == 204


async def test_ping_that_lists_a_cancelled_job_is_answered_by_another_stop(
    plane: MakePlane,
) -> None:
    at = await plane(poll_hold_s=0.1)
    worker, other = at.worker(), at.worker("other")
    cancelled, running = await at.run(), await at.run()
    assert [(await worker.taken())["id"] for _ in range(2)] == [cancelled, running]
    await at.client.post(f"/v2/ep/cancel/{cancelled}")
    # The SDK ignores these if it has not begun the job.
    for _ in range(2):
        assert (await worker.stop()).json() == {"jobsToStop": [cancelled]}
    assert (await worker.ping(f"job_id={running},{cancelled},unknown")).status_code == 200
    assert (await worker.stop()).json() == {"jobsToStop": [cancelled]}
    # A name that never called for a job gets nothing.
    await other.ping(f"job_id={cancelled}")
    assert (await other.stop()).status_code == 204
    assert (await at.status(running))["status"] == "IN_PROGRESS"


async def test_job_that_runs_too_long_is_stopped(plane: MakePlane) -> None:
    at = await plane(min_execution_timeout_ms=1)
    worker = at.worker()
    job_id = await at.run(policy={"executionTimeout": 100})
    await worker.taken()
    assert (await worker.stop()).json() == {"jobsToStop": [job_id]}
    assert (await at.status(job_id))["status"] == "TIMED_OUT"


async def test_call_for_stops_ends_when_its_worker_leaves(plane: MakePlane) -> None:
    # Told to end, the SDK waits for this answer and asks for no more jobs.
    at = await plane()
    worker = at.worker()
    await worker.take()
    began = time.monotonic()
    assert (await worker.stop()).status_code == 204
    # It is held for 80 s while its worker asks for jobs.
    assert 1 < time.monotonic() - began < 30


# -- losses ---------------------------------------------------------------------------------------


async def _ping_for_ever(worker: Worker) -> None:
    while True:
        await worker.ping("job_id=x")
        await asyncio.sleep(0.02)


async def test_dead_worker_is_noticed_by_its_broken_call(
    plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its pings do not list the job, which would be lost for that too.
    monkeypatch.setattr(emulator.runpod.worker_registry, "_MISSING_CONFIRM_S", 3600.0)
    at = await plane()
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    with await at.open_poll(worker) as wire:
        # Held for as long as it has the job.
        await asyncio.sleep(2 * HOLD_S + 2 * GRACE_S)
        assert (await at.status(job_id))["status"] == "IN_PROGRESS"
        wire.close(reset=True)
    died_at = time.monotonic()
    pinging = asyncio.create_task(_ping_for_ever(worker))
    await at.becomes(job_id, "IN_QUEUE")
    assert GRACE_S <= time.monotonic() - died_at
    pinging.cancel()
    health = await at.health()
    assert health["jobs"]["retried"] == 1
    assert health["workers"]["running"] == health["workers"]["idle"] == 0
    assert await worker.done(job_id, {"output": "late"}) == IGNORED
    other = at.worker("w2")
    assert (await other.taken())["id"] == job_id
    assert await worker.done(job_id, {"output": "late"}) == IGNORED
    assert await other.done(job_id, {"output": "in time"}) == TAKEN
    assert (await at.status(job_id))["output"] == "in time"


async def test_worker_that_comes_back_in_time_keeps_its_job(plane: MakePlane) -> None:
    at = await plane(worker_grace_s=1.5)
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    with await at.open_poll(worker) as wire:
        wire.close(reset=True)
    await asyncio.sleep(0.2)
    with await at.open_poll(worker):
        await asyncio.sleep(2)
        assert await worker.done(job_id, {"output": 1}) == TAKEN


async def test_open_call_keeps_the_lease_though_nothing_else_is_heard(plane: MakePlane) -> None:
    at = await plane(lease_s=1.2)
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    with await at.open_poll(worker):
        await asyncio.sleep(2)
        assert (await at.status(job_id))["status"] == "IN_PROGRESS"


async def test_worker_that_gives_no_sign_loses_its_job(plane: MakePlane) -> None:
    at = await plane(lease_s=1.5)
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    for _ in range(8):
        await asyncio.sleep(0.25)
        await worker.ping("job_id=x")
    assert (await at.status(job_id))["status"] == "IN_PROGRESS"
    await at.becomes(job_id, "IN_QUEUE")


@pytest.mark.long_except("settings1-2")
@pytest.mark.parametrize(
    ("settings", "losses"), [({"lost_jobs": "fail"}, 1), ({"max_losses": 2}, 2)]
)
async def test_job_that_is_lost_too_often_fails(
    plane: MakePlane, settings: dict[str, Any], losses: int
) -> None:
    at = await plane(**settings)
    job_id = await at.run()
    shown: dict[str, Any] = {}
    for number in range(1, losses + 1):
        worker = at.worker(f"w{number}")
        await worker.taken()
        with await at.open_poll(worker):
            pass
        shown = await at.becomes(job_id, "FAILED" if number == losses else "IN_QUEUE")
    assert shown["error"].endswith("the last time: its worker went away")


async def test_broken_call_for_jobs_takes_none(plane: MakePlane) -> None:
    at = await plane(poll_hold_s=20)
    with await at.open_poll(at.worker(), "job-take"):
        pass
    job_id = await at.run()
    await asyncio.sleep(2 * GRACE_S)
    assert await at.status(job_id) == {"id": job_id, "status": "IN_QUEUE"}
    assert (await at.worker("w2").taken())["id"] == job_id


async def test_worker_that_says_it_has_no_job_has_lost_it(plane: MakePlane) -> None:
    # Its result could not be delivered, or it was killed and started again under its name.
    at = await plane(poll_hold_s=0.1)
    worker = at.worker()
    job_id = await at.run()
    await worker.taken()
    with await at.open_poll(worker):
        assert (await worker.take("1")).status_code == 204
        await asyncio.sleep(0.9)
        assert (await worker.take("0")).status_code == 204
        assert (await at.status(job_id))["status"] == "IN_PROGRESS"
        await at.becomes(job_id, "IN_QUEUE")
        assert (await worker.taken())["id"] == job_id


async def test_job_that_a_busy_workers_pings_do_not_name_is_lost(plane: MakePlane) -> None:
    at = await plane(poll_hold_s=0.1)
    worker = at.worker()
    kept, lost = await at.run(), await at.run()
    assert [(await worker.taken())["id"] for _ in range(2)] == [kept, lost]
    with await at.open_poll(worker):
        await worker.ping(f"job_id={kept}")
        assert (await worker.take("1")).status_code == 204
        await worker.ping(f"job_id={kept}")
        await at.becomes(lost, "IN_QUEUE")
        assert (await at.status(kept))["status"] == "IN_PROGRESS"


async def test_second_worker_of_a_name_does_not_speak_for_the_first(plane: MakePlane) -> None:
    at = await plane(poll_hold_s=0.1)
    first, second = at.worker(), at.worker()
    job_id = await at.run()
    await first.taken()
    with await at.open_poll(first), await at.open_poll(second):
        for _ in range(6):
            assert (await second.take("0")).status_code == 204
            await asyncio.sleep(0.2)
        assert (await at.status(job_id))["status"] == "IN_PROGRESS"
        assert await first.done(job_id, {"output": 1}) == TAKEN


async def test_old_worker_that_makes_no_call_for_stops_gets_its_jobs(plane: MakePlane) -> None:
    at = await plane()
    worker = at.worker()
    for _ in range(3):
        job_id = await at.run()
        began = time.monotonic()
        assert (await worker.taken())["id"] == job_id
        assert time.monotonic() - began < 1
        await worker.done(job_id, {"output": 1})


async def test_job_is_given_only_to_a_worker_whose_death_would_be_noticed(plane: MakePlane) -> None:
    # It may block as soon as it has a job; the SDK pauses for a second between its calls.
    at = await plane(poll_hold_s=5)
    worker = at.worker()
    with await at.open_poll(worker):
        pass
    job_id = await at.run()
    taking = asyncio.create_task(worker.taken())
    await asyncio.sleep(0.5)
    assert (await at.status(job_id))["status"] == "IN_QUEUE"
    with await at.open_poll(worker):
        assert (await taking)["id"] == job_id


async def test_health_counts_workers_and_forgets_them(
    plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "_IDLE_EXPIRY_S", 0.3)
    at = await plane()

    async def counts() -> tuple[int, int]:
        workers = (await at.health())["workers"]
        return workers["idle"], workers["running"]

    worker = at.worker()
    # Pings alone are no worker.
    await worker.ping()
    assert await counts() == (0, 0)
    await worker.take()
    assert await counts() == (1, 0)
    job_id = await at.run()
    await worker.taken()
    assert await counts() == (0, 1)
    await worker.done(job_id, {"output": 1})
    assert await counts() == (1, 0)

    async def forgotten() -> bool:
        return await counts() == (0, 0)

    await poll_until(forgotten)


async def test_unhealthy_worker_is_told_of(
    plane: MakePlane, caplog: pytest.LogCaptureFixture
) -> None:
    at = await plane()
    answer = await at.worker().ping("status=unhealthy&check=_gpu&reason=no+gpu")
    assert answer.status_code == 200
    assert "worker w1 is unhealthy: _gpu: no gpu" in caplog.text


async def test_result_is_taken_after_the_servers_restart(plane: MakePlane, tmp_path: Path) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    settings = EmulatorSettings(
        engine="scripted", engine_isolation="thread", local_worker=False, job_db=database
    )
    async with run_server(settings) as server, server.client() as client:
        first = Plane(server, client)
        jobs = [await first.run({"n": number}) for number in range(3)]
        assert len((await first.worker().batch(2)).json()) == 2
        await first.worker().post("job-stream", jobs[0], {"output": "a"})
    second = await plane(job_db=database, lease_s=0.8)
    worker = second.worker()
    assert [(await second.status(job_id))["status"] for job_id in jobs] == [
        "IN_PROGRESS",
        "IN_PROGRESS",
        "IN_QUEUE",
    ]
    # Its loop is blocked: its pings are all there is, and they keep its lease.
    for _ in range(6):
        await worker.ping("job_id=x")
        await asyncio.sleep(0.2)
    await worker.post("job-stream", jobs[0], {"output": "b"})
    assert await worker.done(jobs[0], {"output": ["a", "b"]}) == TAKEN
    assert (await second.status(jobs[0]))["output"] == ["a", "b"]
    await second.becomes(jobs[1], "IN_QUEUE")
