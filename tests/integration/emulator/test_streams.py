"""`/stream` over HTTP as JSON, which drains."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import submit_job
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.integration.emulator.serving import RawConnection, build_request_head
from tests.unit.emulator.events import DEADLINE_S

TALK: dict[str, Any] = {"prompt": "talk", "sampling_params": {"stream": True}}


async def drained(client: httpx2.AsyncClient, job_id: str, method: str = "GET") -> Any:
    response = await client.request(method, f"/v2/other/stream/{job_id}")
    assert response.status_code == 200
    shown = response.json()
    assert shown.keys() - {"message"} == {"status", "stream"}
    # An end without output has a reason.
    is_final = shown["status"] not in ("IN_QUEUE", "IN_PROGRESS")
    assert ("message" in shown) is (is_final and not shown["stream"])
    return shown["status"], [item["output"] for item in shown["stream"]]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_chunks_are_drained_while_the_job_runs(serve: Serve, method: str) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await worker.send_chunks(job, "a", {"b": [1, None]})
        assert await drained(client, job_id, method) == ("IN_PROGRESS", ["a", {"b": [1, None]}])
        asked = asyncio.create_task(drained(client, job_id, method))
        await server.wait_until(lambda: len(server.tasks) == 1)
        assert not asked.done()
        await worker.send_chunks(job, "c")
        assert await asked == ("IN_PROGRESS", ["c"])
        await worker.send_chunks(job, "d", "é")
        await worker.post_result(job, output=["all"])
        assert await drained(client, job_id, method) == ("COMPLETED", ["d", "é"])
        assert await drained(client, job_id, method) == ("COMPLETED", [])
        status = (await client.get(f"/v2/other/status/{job_id}")).json()
        assert status["output"] == ["all"]


async def test_nothing_new_is_an_empty_answer_in_time(serve: Serve) -> None:
    server = await serve(stream_hold_s=0.05)
    async with server.client() as client:
        job_id = await submit_job(client)
        assert await drained(client, job_id) == ("IN_QUEUE", [])
        job = await ScriptedWorker(client).take_job()
        assert await drained(client, job_id) == ("IN_PROGRESS", [])
        await ScriptedWorker(client).post_result(job, error="it broke")
        assert await drained(client, job_id) == ("FAILED", [])


@pytest.mark.parametrize("how", ["cancel", "purge"])
async def test_cancelled_job_answers_at_once(serve: Serve, how: str) -> None:
    # RunPod's Python client asks on for ever; it must not wait as well.
    server = await serve(stream_hold_s=9)
    async with server.client() as client:
        job_id = await submit_job(client)
        asked = asyncio.create_task(drained(client, job_id))
        await server.wait_until(lambda: len(server.tasks) == 1)
        path = f"cancel/{job_id}" if how == "cancel" else "purge-queue"
        await client.post(f"/v2/other/{path}")
        async with asyncio.timeout(5):
            assert await asked == ("CANCELLED", [])
            assert await drained(client, job_id) == ("CANCELLED", [])


async def test_reader_that_leaves_takes_nothing_along(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        with await RawConnection.connect(server.port) as wire:
            await wire.send(build_request_head("GET", f"/v2/other/stream/{job_id}"))
            await server.wait_until(lambda: len(server.tasks) == 1)
        await server.wait_until_no_requests()
        await worker.send_chunks(job, "a")
        assert await drained(client, job_id) == ("IN_PROGRESS", ["a"])


async def test_head_takes_nothing(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        await worker.send_chunks(await worker.take_job(), "a")
        for accept in ("*/*", "text/event-stream"):
            path = f"/v2/other/stream/{job_id}"
            assert (await client.head(path, headers={"accept": accept})).content == b""
        assert await drained(client, job_id) == ("IN_PROGRESS", ["a"])


async def test_job_of_another_endpoint_is_404(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id = await submit_job(client)
        for path in (f"/stream/{job_id}", f"/v2/third/stream/{job_id}", "/stream/nobody"):
            for accept in ("application/json", "text/event-stream"):
                response = await client.get(path, headers={"accept": accept})
                assert response.status_code == 404
                assert "there is no job" in read_reason(response.json())


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_local_workers_last_chunk_is_the_whole(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:  # R59
    pieces = ["one ", {"text": "two ", "delay_ms": 60}, {"text": "three", "delay_ms": 60}]
    server = await serve(script({"pieces": pieces}), stream_mode=mode)
    async with server.client() as client:
        job_id = (await client.post("/run", json={"input": TALK})).json()["id"]
        found: list[Any] = []
        status = ""
        async with asyncio.timeout(DEADLINE_S):
            while status != "COMPLETED":
                shown = (await client.get(f"/stream/{job_id}")).json()
                status = shown["status"]
                found += [item["output"] for item in shown["stream"]]
        job = (await client.get(f"/status/{job_id}")).json()
    assert job["output"] == (found if mode == "generator" else found[-1])
    assert len(found) > 1
    assert found[-1]["choices"][0]["text"] == "one two three"
