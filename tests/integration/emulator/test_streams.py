"""`/stream` over HTTP as JSON: each chunk is returned once."""

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


async def drain_stream(client: httpx2.AsyncClient, job_id: str, method: str = "GET") -> Any:
    response = await client.request(method, f"/v2/other/stream/{job_id}")
    assert response.status_code == 200
    body = response.json()
    assert body.keys() - {"message"} == {"status", "stream"}
    # An ended job without output has a message with the reason.
    is_final = body["status"] not in ("IN_QUEUE", "IN_PROGRESS")
    assert ("message" in body) is (is_final and not body["stream"])
    return body["status"], [item["output"] for item in body["stream"]]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_chunks_are_drained_while_the_job_runs(serve: Serve, method: str) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await worker.send_chunks(job, "a", {"b": [1, None]})
        assert await drain_stream(client, job_id, method) == (
            "IN_PROGRESS",
            ["a", {"b": [1, None]}],
        )
        pending = asyncio.create_task(drain_stream(client, job_id, method))
        await server.wait_until(lambda: len(server.tasks) == 1)
        assert not pending.done()
        await worker.send_chunks(job, "c")
        assert await pending == ("IN_PROGRESS", ["c"])
        await worker.send_chunks(job, "d", "é")
        await worker.post_result(job, output=["all"])
        assert await drain_stream(client, job_id, method) == ("COMPLETED", ["d", "é"])
        assert await drain_stream(client, job_id, method) == ("COMPLETED", [])
        status = (await client.get(f"/v2/other/status/{job_id}")).json()
        assert status["output"] == ["all"]


async def test_stream_without_new_chunks_is_empty_after_the_hold_time(serve: Serve) -> None:
    server = await serve(stream_hold_s=0.05)
    async with server.client() as client:
        job_id = await submit_job(client)
        assert await drain_stream(client, job_id) == ("IN_QUEUE", [])
        job = await ScriptedWorker(client).take_job()
        assert await drain_stream(client, job_id) == ("IN_PROGRESS", [])
        await ScriptedWorker(client).post_result(job, error="it broke")
        assert await drain_stream(client, job_id) == ("FAILED", [])


@pytest.mark.parametrize("route", ["cancel", "purge"])
async def test_cancel_ends_the_held_request_immediately(serve: Serve, route: str) -> None:
    # RunPod's Python client polls without a limit; each poll must not be held as well.
    server = await serve(stream_hold_s=9)
    async with server.client() as client:
        job_id = await submit_job(client)
        pending = asyncio.create_task(drain_stream(client, job_id))
        await server.wait_until(lambda: len(server.tasks) == 1)
        path = f"cancel/{job_id}" if route == "cancel" else "purge-queue"
        await client.post(f"/v2/other/{path}")
        async with asyncio.timeout(40):
            assert await pending == ("CANCELLED", [])
            assert await drain_stream(client, job_id) == ("CANCELLED", [])


async def test_disconnected_client_drains_no_chunks(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        with await RawConnection.connect(server.port) as wire:
            await wire.send(build_request_head("GET", f"/v2/other/stream/{job_id}"))
            await server.wait_until(lambda: len(server.tasks) == 1)
        await server.wait_until_no_requests()
        await worker.send_chunks(job, "a")
        assert await drain_stream(client, job_id) == ("IN_PROGRESS", ["a"])


async def test_head_request_drains_no_chunks(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        await worker.send_chunks(await worker.take_job(), "a")
        for accept in ("*/*", "text/event-stream"):
            path = f"/v2/other/stream/{job_id}"
            assert (await client.head(path, headers={"accept": accept})).content == b""
        assert await drain_stream(client, job_id) == ("IN_PROGRESS", ["a"])


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
async def test_last_chunk_of_the_local_worker_is_the_complete_output(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:  # R59
    pieces = ["one ", {"text": "two ", "delay_ms": 60}, {"text": "three", "delay_ms": 60}]
    server = await serve(script({"pieces": pieces}), stream_mode=mode)
    async with server.client() as client:
        job_id = (await client.post("/run", json={"input": TALK})).json()["id"]
        outputs: list[Any] = []
        status = ""
        async with asyncio.timeout(DEADLINE_S):
            while status != "COMPLETED":
                body = (await client.get(f"/stream/{job_id}")).json()
                status = body["status"]
                outputs += [item["output"] for item in body["stream"]]
        job = (await client.get(f"/status/{job_id}")).json()
    assert job["output"] == (outputs if mode == "generator" else outputs[-1])
    assert len(outputs) > 1
    assert outputs[-1]["choices"][0]["text"] == "one two three"
