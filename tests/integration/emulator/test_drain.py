"""The server's end, seen by its clients and its workers."""

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

HANG = {"hang_s": 3600}
SLOWLY = {"pieces": ["a", {"text": "b", "delay_ms": 300}]}


async def ending(server: Server) -> asyncio.Task[None]:
    """Begin the end of the server."""
    task = asyncio.create_task(server.graceful_shutdown.wait())
    await server.graceful_shutdown.state.draining.wait()
    return task


async def take(client: httpx2.AsyncClient, path: str) -> Any:
    """Ask for a job until there is one."""
    async with asyncio.timeout(10):
        while True:
            response = await client.get(path)
            if response.status_code == 200:
                return response.json()


async def over(server: Server, task: asyncio.Task[None]) -> None:
    """Wait until the time is up, and do to the requests what the server then does."""
    async with asyncio.timeout(10):
        await task
    await asyncio.sleep(0.2)
    for each in server.tasks:
        each.cancel()


async def test_worker_that_waits_is_told_there_is_nothing_and_then_to_wait(serve: Serve) -> None:
    server = await serve(poll_hold_s=60, local_worker=False)
    async with server.client() as client:
        polls = [
            asyncio.create_task(client.get(f"/v2/default/{path}"))
            for path in ("job-take/one", "job-take-batch/two")
        ]
        await server.wait_until(lambda: len(server.tasks) == 2)
        await ending(server)
        async with asyncio.timeout(5):
            assert [(await poll).status_code for poll in polls] == [204, 204]
        refused = await client.get("/v2/default/job-take/w")
        # The SDK waits 5 s after a 429, and not at all after anything else.
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


async def test_nothing_new_is_begun_and_health_says_so(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(SLOWLY), drain_s=30)
    async with server.client() as client:
        sent = (await client.post("/run", json={"input": {"prompt": "x"}})).json()
        await server.events.wait(RequestStarted)
        await ending(server)
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
        found = (await client.get(f"/status-sync/{sent['id']}")).json()
        assert found["status"] == "COMPLETED"


async def test_job_of_a_worker_is_handed_in_before_the_end(serve: Serve) -> None:
    server = await serve(local_worker=False, drain_s=30)
    async with server.client() as client:
        sync = asyncio.create_task(client.post("/runsync", json={"input": 1}))
        taken = await take(client, "/v2/default/job-take/w")
        task = await ending(server)
        await asyncio.sleep(0.1)
        assert not sync.done()
        assert not task.done()
        done = await client.post(f"/v2/default/job-done/w/{taken['id']}", json={"output": "yes"})
        assert done.json() == {"ok": True}
        assert (await sync).json()["output"] == "yes"
        async with asyncio.timeout(5):
            await task


async def test_runsync_whose_job_waits_gets_its_id_at_once(serve: Serve, tmp_path: Path) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    server = await serve(local_worker=False, job_db=database)
    async with server.client() as client:
        waiting = asyncio.create_task(client.post("/runsync", json={"input": 7}))
        await server.wait_until(lambda: bool(server.tasks))
        await asyncio.sleep(0.05)
        await ending(server)
        async with asyncio.timeout(5):
            told = (await waiting).json()
    assert told["status"] == "IN_QUEUE"
    # Its id was told, so the job is there after the next start.
    await server.uvicorn.lifespan.shutdown()
    again = await serve(local_worker=False, job_db=database)
    async with again.client() as client:
        assert (await client.get(f"/status/{told['id']}")).json()["status"] == "IN_QUEUE"


async def test_runsync_whose_job_runs_on_gets_its_id_at_the_end(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=0.3)
    async with server.client() as client:
        waiting = asyncio.create_task(client.post("/runsync", json={"input": {"prompt": "x"}}))
        await server.events.wait(RequestStarted)
        task = await ending(server)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with asyncio.timeout(5):
            told = (await waiting).json()
        assert told["status"] in ("IN_PROGRESS", "IN_QUEUE")
        await over(server, task)
        found = (await client.get(f"/status/{told['id']}")).json()
        assert found["status"] == "IN_QUEUE"


async def test_stream_that_ends_in_time_is_whole(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(SLOWLY), drain_s=30)
    async with server.client() as client:
        asked = asyncio.create_task(
            client.post("/v1/completions", json={"prompt": "x", "stream": True})
        )
        await server.events.wait(RequestStarted)
        task = await ending(server)
        found = parse_sse((await asked).content)
        assert found[-1] == "[DONE]"
        assert "error" not in str(found)
        async with asyncio.timeout(5):
            await task


async def test_stream_that_does_not_end_says_why_it_does(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=0.2)
    async with server.client() as client:
        stream = {"prompt": "x", "stream": True}
        asked = [
            asyncio.create_task(client.post("/v1/completions", json=stream)),
            asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"})),
        ]
        await server.events.wait(RequestStarted, 2)
        await over(server, await ending(server))
        streamed, whole = [await each for each in asked]
        found = parse_sse(streamed.content)
        assert found[0]["choices"][0]["text"] == "a"
        error: dict[str, Any] = found[-2]["error"]
        assert (error["code"], error["details"]) == (503, {"reason": "the server is shutting down"})
        assert found[-1] == "[DONE]"
        assert whole.status_code == 503
        assert whole.json()["error"]["details"]["reason"] == "the server is shutting down"
    await server.wait_until_idle()


async def test_jobs_stream_says_that_it_closes(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        sent = (await client.post("/run", json={"input": 1})).json()
        asked = asyncio.create_task(
            client.get(f"/stream/{sent['id']}", headers={"accept": "text/event-stream"})
        )
        await server.wait_until(lambda: bool(server.tasks))
        await asyncio.sleep(0.05)
        await over(server, await ending(server))
        last = (await asked).text.rstrip("\n").split("\n\n")[-1].split("\n")
    assert last[0] == "event: closing"
    assert json.loads(last[1].removeprefix("data: "))["error"]["code"] == 503


@pytest.mark.parametrize("drain_s", [0, 0.2])
async def test_end_is_bounded_whatever_runs(
    serve: Serve, script: ScriptFactory, drain_s: float
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), drain_s=drain_s, poll_hold_s=60)
    loop = asyncio.get_running_loop()
    async with server.client() as client:
        await client.post("/run", json={"input": {"prompt": "x"}})
        await client.post("/v2/other/run", json={"input": 1})
        await take(client, "/v2/other/job-take/w")
        stop = asyncio.create_task(client.get("/v2/other/job-stop/w"))
        await server.events.wait(RequestStarted)
        began = loop.time()
        await over(server, await ending(server))
        assert loop.time() - began < drain_s + 20
        assert (await stop).status_code == 204
    await server.wait_until_idle()
