"""The server's shutdown, as its clients and workers see it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.hooks import RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server, parse_sse
from tests.waiting import poll_until

HANG = {"hang_s": 3600}
SLOW_SCRIPT = {"pieces": ["a", {"text": "b", "delay_ms": 300}]}


async def start_shutdown(server: Server) -> asyncio.Task[None]:
    """Start the shutdown of the server and wait until it drains."""
    task = asyncio.create_task(server.graceful_shutdown.wait())
    await server.graceful_shutdown.state.draining.wait()
    return task


async def take_job(client: httpx2.AsyncClient, path: str) -> Any:
    """Poll until the server dispatches a job, and return it."""
    async with asyncio.timeout(40):
        while True:
            response = await client.get(path)
            if response.status_code == 200:
                return response.json()


async def finish_shutdown(server: Server, task: asyncio.Task[None]) -> None:
    """Wait for the drain deadline, then cancel the open requests as the server does."""
    async with asyncio.timeout(40):
        await task
    await asyncio.sleep(0.2)
    for request_task in server.tasks:
        request_task.cancel()


async def test_held_polls_end_with_204_and_new_ones_with_429(serve: Serve) -> None:
    server = await serve(poll_hold_s=60, local_worker=False)
    async with server.client() as client:
        polls = [
            asyncio.create_task(client.get(f"/v2/default/{path}"))
            for path in ("job-take/one", "job-take-batch/two")
        ]
        await server.wait_until(lambda: len(server.tasks) == 2)
        await start_shutdown(server)
        async with asyncio.timeout(40):
            assert [(await poll).status_code for poll in polls] == [204, 204]
        refused = await client.get("/v2/default/job-take/w")
        # The SDK waits 5 s after a 429, and not at all after anything else.
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


async def test_new_requests_get_503_and_health_reports_draining(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(SLOW_SCRIPT), drain_s=30)
    async with server.client() as client:
        job = (await client.post("/run", json={"input": {"prompt": "x"}})).json()
        await server.events.wait(RequestStarted)
        await start_shutdown(server)
        for path, body in (
            ("/run", {"input": 1}),
            ("/runsync", {"input": 1}),
            ("/v1/completions", {"prompt": "x"}),
        ):
            response = await client.post(path, json=body)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        ended = (await client.get(f"/status-sync/{job['id']}")).json()
        assert ended["status"] == "COMPLETED"


async def test_drain_waits_for_the_result_of_a_worker(serve: Serve) -> None:
    server = await serve(local_worker=False, drain_s=30)
    async with server.client() as client:
        sync = asyncio.create_task(client.post("/runsync", json={"input": 1}))
        job = await take_job(client, "/v2/default/job-take/w")
        task = await start_shutdown(server)
        await asyncio.sleep(0.1)
        assert not sync.done()
        assert not task.done()
        done = await client.post(f"/v2/default/job-done/w/{job['id']}", json={"output": "yes"})
        assert done.json() == {"ok": True}
        assert (await sync).json()["output"] == "yes"
        async with asyncio.timeout(40):
            await task


async def test_runsync_of_a_queued_job_returns_its_id_immediately(
    serve: Serve, tmp_path: Path
) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    server = await serve(local_worker=False, job_db=database)
    async with server.client() as client:
        waiting = asyncio.create_task(client.post("/runsync", json={"input": 7}))

        async def is_queued() -> bool:
            health = (await client.get("/v2/default/health")).json()
            return bool(health["jobs"]["inQueue"] == 1)

        await poll_until(is_queued)
        await start_shutdown(server)
        async with asyncio.timeout(40):
            job = (await waiting).json()
    assert job["status"] == "IN_QUEUE"
    # The client has the job's id, so the job must survive the restart.
    await server.uvicorn.lifespan.shutdown()
    restarted = await serve(local_worker=False, job_db=database)
    async with restarted.client() as client:
        assert (await client.get(f"/status/{job['id']}")).json()["status"] == "IN_QUEUE"


async def test_runsync_of_a_running_job_returns_its_id_at_the_deadline(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=0.3)
    async with server.client() as client:
        waiting = asyncio.create_task(client.post("/runsync", json={"input": {"prompt": "x"}}))
        await server.events.wait(RequestStarted)
        task = await start_shutdown(server)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with asyncio.timeout(40):
            job = (await waiting).json()
        assert job["status"] in ("IN_PROGRESS", "IN_QUEUE")
        await finish_shutdown(server, task)
        requeued = (await client.get(f"/status/{job['id']}")).json()
        assert requeued["status"] == "IN_QUEUE"


async def test_stream_that_ends_before_the_deadline_is_complete(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(SLOW_SCRIPT), drain_s=30)
    async with server.client() as client:
        response = asyncio.create_task(
            client.post("/v1/completions", json={"prompt": "x", "stream": True})
        )
        await server.events.wait(RequestStarted)
        task = await start_shutdown(server)
        events = parse_sse((await response).content)
        assert events[-1] == "[DONE]"
        assert "error" not in str(events)
        async with asyncio.timeout(40):
            await task


async def test_stream_cut_by_the_deadline_ends_with_an_error(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=0.2)
    async with server.client() as client:
        stream = {"prompt": "x", "stream": True}
        responses = [
            asyncio.create_task(client.post("/v1/completions", json=stream)),
            asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"})),
        ]
        await server.events.wait(RequestStarted, 2)
        await finish_shutdown(server, await start_shutdown(server))
        streamed, complete = [await response for response in responses]
        events = parse_sse(streamed.content)
        assert events[0]["choices"][0]["text"] == "a"
        error: dict[str, Any] = events[-2]["error"]
        assert (error["code"], error["details"]) == (503, {"reason": "the server is shutting down"})
        assert events[-1] == "[DONE]"
        assert complete.status_code == 503
        assert complete.json()["error"]["details"]["reason"] == "the server is shutting down"
    await server.wait_until_idle()


async def test_job_stream_ends_with_a_closing_event(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        job = (await client.post("/run", json={"input": 1})).json()
        response = asyncio.create_task(
            client.get(f"/stream/{job['id']}", headers={"accept": "text/event-stream"})
        )
        await server.wait_until(lambda: bool(server.tasks))
        await asyncio.sleep(0.05)
        await finish_shutdown(server, await start_shutdown(server))
        last = (await response).text.rstrip("\n").split("\n\n")[-1].split("\n")
    assert last[0] == "event: closing"
    assert json.loads(last[1].removeprefix("data: "))["error"]["code"] == 503


@pytest.mark.parametrize("drain_s", [0, 0.2])
async def test_shutdown_is_bounded_while_jobs_hang(
    serve: Serve, script: ScriptFactory, drain_s: float
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=drain_s, poll_hold_s=60)
    async with server.client() as client:
        await client.post("/run", json={"input": {"prompt": "x"}})
        await client.post("/v2/other/run", json={"input": 1})
        await take_job(client, "/v2/other/job-take/w")
        stop = asyncio.create_task(client.get("/v2/other/job-stop/w"))
        await server.events.wait(RequestStarted)
        await finish_shutdown(server, await start_shutdown(server))
        assert (await stop).status_code == 204
    await server.wait_until_idle()
