"""`/run`, `/runsync`, `/status` and `/status-sync` over HTTP."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx2
import pytest
from structlog.contextvars import get_contextvars

from engine.hooks import RequestStarted
from tests.conftest import ScriptFactory
from tests.error_bodies import read_param, read_reason
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.job_client import wait_until_deleted

HANG = {"hang_s": 3600}
INPUT: dict[str, Any] = {"prompt": "hello there", "sampling_params": {"max_tokens": 8}}
PREFIXES = ["", "/v2/default"]


async def wait_for_end(client: httpx2.AsyncClient, job_id: str, prefix: str = "") -> dict[str, Any]:
    """Poll a job's status until it has ended, as RunPod's clients do."""
    async with asyncio.timeout(40):
        while True:
            job: dict[str, Any] = (await client.get(f"{prefix}/status/{job_id}")).json()
            if job["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
                return job


def without_varying_fields(output: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in output.items() if key not in ("id", "timings")}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("stream", [False, True])
async def test_run_and_runsync_give_the_same_output(
    serve: Serve, script: ScriptFactory, prefix: str, stream: bool
) -> None:  # R51
    server = await serve(script({"pieces": ["Hello", " to", " you"]}))
    body = {"input": INPUT | {"stream": stream}}
    async with server.client() as client:
        accepted = await client.post(f"{prefix}/run", json=body)
        assert accepted.status_code == 200
        assert accepted.json().keys() == {"id", "status"}
        assert accepted.json()["status"] == "IN_QUEUE"
        job = await wait_for_end(client, accepted.json()["id"], prefix)
        response = await client.post(f"{prefix}/runsync", json=body)
        # Both forms of the status route return the ended job.
        for other_prefix in PREFIXES:
            later = await client.get(f"{other_prefix}/status/{response.json()['id']}")
            assert later.json() == response.json()
    assert response.status_code == 200
    sync_job = response.json()
    assert sync_job["id"].startswith("sync-")
    assert not job["id"].startswith("sync-")
    for ended_job in (job, sync_job):
        assert ended_job["status"] == "COMPLETED"
        assert ended_job["workerId"] == "local"
        assert ended_job["output"]["id"] == ended_job["id"]
        assert type(ended_job["delayTime"]) is int
        assert type(ended_job["executionTime"]) is int
        assert "error" not in ended_job
    assert without_varying_fields(job["output"]) == without_varying_fields(sync_job["output"])
    output = job["output"]
    assert output["streaming"] is stream
    (choice,) = output["choices"]
    assert choice["text"] == "Hello to you"
    assert choice["tokens"] == (["Hello", " to", " you"] if stream else ["Hello to you"])
    assert ("deltas" in choice) is stream
    assert output["usage"] == {"input": 2, "output": 3, "total": 5}


async def test_endpoint_id_is_a_setting(serve: Serve) -> None:
    server = await serve(endpoint_id="mine")
    async with server.client() as client:
        for path in ("/v2/mine", ""):
            job = (await client.post(f"{path}/runsync", json={"input": INPUT})).json()
            assert job["status"] == "COMPLETED"
        # No other endpoint has a worker here.
        response = await client.post("/v2/default/run", json={"input": INPUT})
        status = await client.get(f"/v2/default/status/{response.json()['id']}")
        assert status.json()["status"] == "IN_QUEUE"
        assert (await client.get(f"/status/{response.json()['id']}")).status_code == 404


async def test_openai_route_of_a_job(serve: Serve) -> None:  # R44
    server = await serve()
    call = {"openai_route": "/v1/completions", "openai_input": {"prompt": "hi you"}}
    async with server.client() as client:
        job = (await client.post("/runsync", json={"input": call})).json()
    assert job["output"]["choices"][0]["text"] == "hi you"


async def test_failure_is_one_string_and_the_next_job_is_served(
    serve: Serve, script: ScriptFactory
) -> None:  # R50
    fault = {"when": "bad", "pieces": ["so far", {"error": "out of memory"}]}
    server = await serve(script(fault, {}))
    async with server.client() as client:
        for job_input, message in (
            ({"prompt": "bad"}, "out of memory"),
            ({"prompt": ""}, "input.prompt must be a non-empty string"),
            ({"prompt": "x", "sampling_params": {"top_p": 2}}, "input.sampling_params.top_p"),
            ("text", "input must be an object"),
            ([1], "input must be an object"),
            (0, "input must be an object"),
        ):
            response = await client.post("/runsync", json={"input": job_input})
            assert response.status_code == 200
            job = response.json()
            assert job["status"] == "FAILED"
            assert message in job["error"]
            assert "output" not in job
            assert "Traceback" not in response.text
            accepted = (await client.post("/run", json={"input": job_input})).json()
            failed = await wait_for_end(client, accepted["id"])
            assert (failed["status"], failed["error"]) == ("FAILED", job["error"])
        good = (await client.post("/runsync", json={"input": INPUT})).json()
        assert good["status"] == "COMPLETED"


async def test_timeout_of_a_job_is_its_failure(serve: Serve, script: ScriptFactory) -> None:  # R30
    server = await serve(script({"pieces": ["a", HANG]}), request_timeout_s=0.2)
    async with server.client() as client:
        job = (await client.post("/runsync", json={"input": INPUT})).json()
    assert job["status"] == "FAILED"
    assert "REQUEST_TIMEOUT_S" in job["error"]


async def test_job_continues_after_the_wait_has_ended(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": [{"text": "late", "delay_ms": 1300}]}))
    loop = asyncio.get_running_loop()
    async with server.client() as client:
        sent_at = loop.time()
        job = (await client.post("/runsync?wait=1000", json={"input": INPUT})).json()
        assert loop.time() - sent_at >= 1
        assert job["status"] == "IN_PROGRESS"
        assert "output" not in job
        # The client has the job's id now, so the job is kept and listed.
        (listed,) = (await client.get("/requests")).json()["requests"]
        assert listed["id"] == job["id"]
        job = await wait_for_end(client, job["id"])
        assert job["output"]["choices"][0]["text"] == "late"


BAD_WAITS = ["999", "300001", "0", "-1", "x", "", "1e3", "1000.5", "²", "٣٠٠٠", "9" * 5000, " 2000"]


async def test_wait_out_of_bounds_is_400_and_starts_nothing(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        accepted = (await client.post("/v2/other/run", json={"input": INPUT})).json()
        for wait in BAD_WAITS:
            for response in (
                await client.post("/runsync", params={"wait": wait}, json={"input": INPUT}),
                await client.get(f"/v2/other/status-sync/{accepted['id']}", params={"wait": wait}),
            ):
                assert response.status_code == 400
                assert read_param(response.json()) == "wait"
                assert read_reason(response.json()).startswith(
                    "wait must be a whole number of milliseconds from 1000 to 300000, got "
                )
        counts = (await client.get("/v2/default/health")).json()["jobs"]
    assert server.events.of(RequestStarted) == []
    assert set(counts.values()) == {0}


async def test_wait_within_bounds(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        for wait in ("1000", "300000"):
            response = await client.post(f"/runsync?wait={wait}", json={"input": INPUT})
            assert response.json()["status"] == "COMPLETED"
            status = await client.get(f"/status-sync/{response.json()['id']}?wait={wait}")
            assert status.json() == response.json()


@pytest.mark.long_except("GET-/v2/default", "POST-")
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_status_sync_waits_for_the_end(
    serve: Serve, prefix: str, method: str, gate: Gate
) -> None:
    server = await serve(gate.path)
    async with server.client() as client:
        job_id = (await client.post(f"{prefix}/run", json={"input": INPUT})).json()["id"]
        path = f"{prefix}/status-sync/{job_id}"
        assert (await client.request(method, f"{path}?wait=1000")).json() == {
            "id": job_id,
            "status": "IN_QUEUE",
        }
        response = asyncio.create_task(client.request(method, path))
        await server.wait_until(lambda: len(server.tasks) == 1)
        await gate.open()
        assert (await response).json()["status"] == "COMPLETED"


async def test_jobs_wait_in_the_queue_while_the_model_loads(serve: Serve, gate: Gate) -> None:
    server = await serve(gate.path)
    async with server.client() as client:
        ids = [(await client.post("/run", json={"input": INPUT})).json()["id"] for _ in range(9)]
        sync = asyncio.create_task(client.post("/runsync", json={"input": INPUT}))
        for job_id in ids:
            job = (await client.get(f"/status/{job_id}")).json()
            assert job == {"id": job_id, "status": "IN_QUEUE"}
        assert not sync.done()
        await gate.open()
        for job_id in ids:
            assert (await wait_for_end(client, job_id))["status"] == "COMPLETED"
        assert (await sync).json()["status"] == "COMPLETED"


async def test_jobs_beyond_the_slots_wait_in_the_queue(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=2))
    async with server.client() as client:
        ids = [(await client.post("/run", json={"input": INPUT})).json()["id"] for _ in range(4)]
        await server.events.wait(RequestStarted, 2)
        jobs = [(await client.get(f"/status/{job_id}")).json() for job_id in ids]
    assert [job["status"] for job in jobs] == ["IN_PROGRESS"] * 2 + ["IN_QUEUE"] * 2
    assert ["delayTime" in job for job in jobs] == [True, True, False, False]
    assert not any("executionTime" in job for job in jobs)


async def test_full_store_is_429_with_retry_after(serve: Serve, gate: Gate) -> None:
    server = await serve(gate.path, max_jobs=3, result_retention_s=0.1)
    async with server.client() as client:
        ids = [(await client.post("/run", json={"input": INPUT})).json()["id"] for _ in range(3)]
        for route in ("/run", "/runsync"):
            response = await client.post(route, json={"input": INPUT})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert "jobs" in read_reason(response.json())
        await gate.open()
        # A job whose retention has passed is deleted, which makes room.
        await wait_until_deleted(client, ids[0])
        for _ in range(9):
            # A result that was delivered makes room at once.
            assert (await client.post("/runsync", json={"input": INPUT})).status_code == 200


async def test_concurrent_jobs_end_with_their_own_text(serve: Serve) -> None:
    server = await serve()
    limits = httpx2.Limits(max_connections=20)
    async with server.client(limits=limits) as client:

        async def check_job(number: int) -> None:
            job_input = {"prompt": f"this is number {number}"}
            if number % 2:
                job = (await client.post("/runsync", json={"input": job_input})).json()
            else:
                accepted = (await client.post("/run", json={"input": job_input})).json()
                job = await wait_for_end(client, accepted["id"])
            assert job["output"]["choices"][0]["text"] == job_input["prompt"]

        await asyncio.gather(*(check_job(number) for number in range(60)))


@pytest.mark.parametrize("route", ["/run", "/runsync"])
async def test_access_log_line_of_a_submission_has_the_job_id(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:  # R55
    contexts: list[dict[str, Any]] = []
    logger = logging.getLogger("emulator.middleware.request_id")
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    monkeypatch.setattr(logger, "log", lambda *args, **extra: contexts.append(get_contextvars()))
    server = await serve()
    async with server.client() as client:
        # Sequential requests on one connection.
        ids = [(await client.post(route, json={"input": INPUT})).json()["id"] for _ in range(2)]
        await client.get("/health")
        await server.wait_until_no_requests()
    assert [context.get("job_id") for context in contexts] == [*ids, None]
