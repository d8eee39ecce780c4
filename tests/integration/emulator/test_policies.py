"""Policies of jobs: endpoint, priority, execution timeout, TTL and retention."""

from __future__ import annotations

import asyncio

from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import (
    INPUT,
    OTHER,
    get_job_counts,
    get_status,
    submit_job,
    wait_for_status,
    wait_until_deleted,
)
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.unit.emulator.events import DEADLINE_S

HANG = {"hang_s": 3600}


async def test_jobs_of_an_endpoint_wait_until_a_worker_joins_it(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        bucket = {
            "accessId": "a",
            "accessSecret": "s",
            "bucketName": "b",
            "endpointUrl": "http://s",
        }
        job_id = await submit_job(client, webhook="http://127.0.0.1:9/", s3Config=bucket)
        second = await submit_job(client)
        sync_response = asyncio.create_task(client.post(f"{OTHER}/runsync", json={"input": INPUT}))
        await server.wait_until(lambda: len(server.tasks) == 1)
        for waiting in (job_id, second):
            assert await get_status(client, waiting) == {"id": waiting, "status": "IN_QUEUE"}
        # The first worker that joins gets the jobs in order.
        worker = ScriptedWorker(client)
        job = await worker.take_job()
        extra = {"webhook": "http://127.0.0.1:9/", "s3Config": bucket}
        assert job == {"id": job_id, "input": INPUT} | extra
        assert await worker.take_job() == {"id": second, "input": INPUT}
        sync = await worker.take_job()
        assert sync["id"].startswith("sync-")
        await worker.post_result(sync, output="at last")
        assert (await sync_response).json()["output"] == "at last"
        assert (await sync_response).json()["workerId"] == "w1"


async def test_low_priority_job_is_dispatched_after_all_others(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        low = await submit_job(client, policy={"lowPriority": True})
        normal = [await submit_job(client), await submit_job(client, policy={"lowPriority": False})]
        worker = ScriptedWorker(client)
        assert [(await worker.take_job())["id"] for _ in range(3)] == [*normal, low]


async def test_status_has_the_progress_until_the_job_ends(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await worker.post_result(job, status="IN_PROGRESS", output="half")
        status = await get_status(client, job_id)
        assert (status["status"], status["output"]) == ("IN_PROGRESS", "half")
        await worker.post_result(job, error="it broke")
        status = await get_status(client, job_id)
        assert (status["status"], status["error"]) == ("FAILED", "it broke")
        assert "output" not in status


async def test_execution_timeout_ends_a_job_and_frees_its_slot(
    serve: Serve, script: ScriptFactory
) -> None:
    hang = {"when": "hang", "pieces": ["a", HANG]}
    server = await serve(script(hang, {"pieces": ["ok"]}, slots=1), min_execution_timeout_ms=1)
    async with server.client() as client:
        body = {"input": {"prompt": "hang"}, "policy": {"executionTimeout": 100}}
        job = (await client.post("/runsync", json=body)).json()
        assert job["status"] == "TIMED_OUT"
        assert job["error"] == "the job ran for more than 0.1 s (executionTimeout)"
        assert job["executionTime"] >= 100
        good = (await client.post("/runsync", json={"input": INPUT})).json()
        assert good["status"] == "COMPLETED"
        assert (await get_job_counts(client, "/v2/default"))["failed"] == 1


async def test_job_is_deleted_when_its_ttl_has_passed(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), min_job_ttl_ms=1)
    async with server.client() as client:
        policy = {"ttl": 300}
        waiting = await submit_job(client, policy=policy)
        requests = [
            client.get(f"{OTHER}/status-sync/{waiting}"),
            client.post(f"{OTHER}/runsync", json={"input": INPUT, "policy": policy}),
            client.post("/runsync", json={"input": INPUT, "policy": policy}),
        ]
        for sync_response in await asyncio.gather(*requests):
            assert sync_response.status_code == 404
            # On a busy machine the job is over before the first request asks for it.
            reason = read_reason(sync_response.json())
            assert reason.endswith("is not kept any more: its ttl is over") or waiting in reason
        for route in ("status", "stream", "cancel", "retry", "requests"):
            method = "GET" if route == "requests" else "POST"
            response = await client.request(method, f"{OTHER}/{route}/{waiting}")
            assert response.status_code == 404
        async with asyncio.timeout(DEADLINE_S):
            await server.wait_until_idle()


async def test_results_are_kept_for_their_retention(serve: Serve) -> None:
    server = await serve(result_retention_s=3600, sync_retention_s=0.05)
    async with server.client() as client:
        job_id = await submit_job(client, "")
        await wait_for_status(client, job_id, "COMPLETED", "")
        sync = (await client.post("/runsync", json={"input": INPUT})).json()
        await wait_until_deleted(client, sync["id"])
        assert (await get_status(client, job_id, ""))["status"] == "COMPLETED"
