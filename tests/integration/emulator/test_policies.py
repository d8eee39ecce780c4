"""What a job may ask of the queue: where it waits, before whom, for how long."""

from __future__ import annotations

import asyncio

from tests.conftest import ScriptFactory
from tests.integration.emulator.asking import INPUT, OTHER, becomes, forgotten, health, sent, status
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.puppet import Puppet
from tests.unit.emulator.events import DEADLINE_S

HANG = {"hang_s": 3600}


async def test_endpoint_exists_once_it_is_named_and_its_jobs_wait(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        bucket = {
            "accessId": "a",
            "accessSecret": "s",
            "bucketName": "b",
            "endpointUrl": "http://s",
        }
        job_id = await sent(client, webhook="http://127.0.0.1:9/", s3Config=bucket)
        second = await sent(client)
        asked = asyncio.create_task(client.post(f"{OTHER}/runsync", json={"input": INPUT}))
        await server.becomes(lambda: len(server.tasks) == 1)
        for waiting in (job_id, second):
            assert await status(client, waiting) == {"id": waiting, "status": "IN_QUEUE"}
        # The first worker that joins gets them in their order.
        worker = Puppet(client)
        job = await worker.take()
        extra = {"webhook": "http://127.0.0.1:9/", "s3Config": bucket}
        assert job == {"id": job_id, "input": INPUT} | extra
        assert await worker.take() == {"id": second, "input": INPUT}
        sync = await worker.take()
        assert sync["id"].startswith("sync-")
        await worker.done(sync, output="at last")
        assert (await asked).json()["output"] == "at last"
        assert (await asked).json()["workerId"] == "w1"


async def test_low_priority_waits_for_all_others(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        low = await sent(client, policy={"lowPriority": True})
        normal = [await sent(client), await sent(client, policy={"lowPriority": False})]
        worker = Puppet(client)
        assert [(await worker.take())["id"] for _ in range(3)] == [*normal, low]


async def test_progress_is_shown_until_the_job_ends(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await sent(client), Puppet(client)
        job = await worker.take()
        await worker.done(job, status="IN_PROGRESS", output="half")
        shown = await status(client, job_id)
        assert (shown["status"], shown["output"]) == ("IN_PROGRESS", "half")
        await worker.done(job, error="it broke")
        shown = await status(client, job_id)
        assert (shown["status"], shown["error"]) == ("FAILED", "it broke")
        assert "output" not in shown


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
        assert (await health(client, "/v2/default"))["failed"] == 1


async def test_job_is_gone_when_its_ttl_is_over(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), min_job_ttl_ms=1)
    async with server.client() as client:
        policy = {"ttl": 300}
        waiting = await sent(client, policy=policy)
        asked = [
            client.get(f"{OTHER}/status-sync/{waiting}"),
            client.post(f"{OTHER}/runsync", json={"input": INPUT, "policy": policy}),
            client.post("/runsync", json={"input": INPUT, "policy": policy}),
        ]
        for response in await asyncio.gather(*asked):
            assert response.status_code == 404
            assert response.json()["error"]["message"].endswith(
                "is not kept any more: its ttl is over"
            )
        for route in ("status", "stream", "cancel", "retry", "requests"):
            method = "GET" if route == "requests" else "POST"
            gone = await client.request(method, f"{OTHER}/{route}/{waiting}")
            assert gone.status_code == 404
        async with asyncio.timeout(DEADLINE_S):
            await server.idle()


async def test_results_are_kept_for_so_long(serve: Serve) -> None:
    server = await serve(result_retention_s=3600, sync_retention_s=0.05)
    async with server.client() as client:
        job_id = await sent(client, "")
        await becomes(client, job_id, "COMPLETED", "")
        sync = (await client.post("/runsync", json={"input": INPUT})).json()
        await forgotten(client, sync["id"])
        assert (await status(client, job_id, ""))["status"] == "COMPLETED"
