"""Routes for submitted jobs: cancel, retry, purge, reset, health and requests."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from engine.hooks import RequestStarted
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
)
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.unit.emulator.events import DEADLINE_S

HANG = {"hang_s": 3600}
# The routes' two forms for the endpoint that the local worker serves.
PREFIXES = ["", "/v2/default"]


# -- cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_cancel_stops_a_job_that_runs(
    serve: Serve, script: ScriptFactory, prefix: str
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    async with server.client() as client:
        job_id, second = await submit_job(client, prefix), await submit_job(client, prefix)
        await server.events.wait(RequestStarted)
        response = await client.post(f"{prefix}/cancel/{job_id}")
        assert response.json() == {"id": job_id, "status": "CANCELLED"}
        # Its slot is free for the next.
        await server.events.wait(RequestStarted, 2)
        await client.post(f"{prefix}/cancel/{second}")
        async with asyncio.timeout(DEADLINE_S):
            await server.wait_until_idle()
        assert (await get_status(client, job_id, prefix))["status"] == "CANCELLED"


async def test_repeated_cancel_changes_nothing(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id = await submit_job(client)
        cancelled = {"id": job_id, "status": "CANCELLED"}
        for _ in range(3):
            response = await client.post(f"{OTHER}/cancel/{job_id}", json={})
            assert (response.status_code, response.json()) == (200, cancelled)
        responses = await asyncio.gather(
            *(client.post(f"{OTHER}/cancel/{job_id}") for _ in range(5))
        )
        assert {response.status_code for response in responses} == {200}
        assert await get_status(client, job_id) == cancelled
        assert await get_job_counts(client) == {
            "completed": 0,
            "failed": 0,
            "inProgress": 0,
            "inQueue": 0,
            "retried": 0,
        }


async def test_cancel_of_a_job_that_has_ended_leaves_its_result(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job = (await client.post("/runsync", json={"input": INPUT})).json()
        response = await client.post(f"/cancel/{job['id']}")
        assert response.json() == {"id": job["id"], "status": "COMPLETED"}
        assert await get_status(client, job["id"], "") == job


async def test_cancel_stops_the_worker_and_its_late_result_is_ignored(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await client.post(f"{OTHER}/cancel/{job_id}")
        stops = await client.get(f"{OTHER}/job-stop/w1")
        assert stops.json() == {"jobsToStop": [job_id]}
        late = await client.post(f"{OTHER}/job-done/w1/{job_id}", json={"output": "late"})
        assert late.status_code == 200
        status = await get_status(client, job["id"])
        assert status["status"] == "CANCELLED"
        assert "output" not in status


async def test_cancel_of_a_runsync_is_on_disk_first(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "jobs.sqlite3"
    server = await serve(job_db=str(database))
    async with server.client() as client:
        waiting = asyncio.create_task(client.post(f"{OTHER}/runsync", json={"input": INPUT}))
        job_id = (await ScriptedWorker(client).take_job())["id"]
        response = await client.post(f"{OTHER}/cancel/{job_id}")
        assert response.json() == {"id": job_id, "status": "CANCELLED"}
        with contextlib.closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, status FROM jobs").fetchall()
        assert (await waiting).json()["status"] == "CANCELLED"
    assert rows == [(job_id, "CANCELLED")]


# -- retry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_retry_runs_a_failed_job_under_the_same_id(
    serve: Serve, script: ScriptFactory, prefix: str
) -> None:
    bad = {"pieces": ["so far", {"error": "out of memory"}]}
    server = await serve(script(bad))
    async with server.client() as client:
        job_id = await submit_job(client, prefix)
        await wait_for_status(client, job_id, "FAILED", prefix)
        for _ in range(2):
            response = await client.post(f"{prefix}/retry/{job_id}")
            assert response.json() == {"id": job_id, "status": "IN_QUEUE"}
            status = await wait_for_status(client, job_id, "FAILED", prefix)
            assert "out of memory" in status["error"]
        counts = await get_job_counts(client, "/v2/default")
        assert (counts["failed"], counts["retried"]) == (1, 1)


async def test_retry_drops_the_output_of_the_first_attempt(serve: Serve) -> None:
    server = await serve(min_execution_timeout_ms=1)
    async with server.client() as client:
        worker = ScriptedWorker(client)
        job_id = await submit_job(client, policy={"executionTimeout": 1_000})
        await worker.send_chunks(await worker.take_job(), "first")
        status = await wait_for_status(client, job_id, "TIMED_OUT")
        assert "executionTimeout" in status["error"]
        await client.post(f"{OTHER}/retry/{job_id}")
        assert await get_status(client, job_id) == {"id": job_id, "status": "IN_QUEUE"}
        job = await worker.take_job()
        await worker.send_chunks(job, "second")
        await worker.post_result(job, output="better")
        assert (await get_status(client, job_id))["output"] == "better"
        stream = (await client.get(f"{OTHER}/stream/{job_id}")).json()
        assert stream == {"status": "COMPLETED", "stream": [{"output": "second"}]}


async def test_only_failed_jobs_can_be_retried(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        worker = ScriptedWorker(client)
        completed, running, cancelled, waiting = [await submit_job(client) for _ in range(4)]
        await worker.post_result(await worker.take_job(), output=1)
        await worker.take_job()
        await client.post(f"{OTHER}/cancel/{cancelled}")
        for job_id, state in (
            (completed, "COMPLETED"),
            (running, "IN_PROGRESS"),
            (cancelled, "CANCELLED"),
            (waiting, "IN_QUEUE"),
        ):
            response = await client.post(f"{OTHER}/retry/{job_id}")
            assert response.status_code == 400
            assert read_reason(response.json()) == (
                f"only a job that is FAILED or TIMED_OUT can be run again, this one is {state}"
            )
            assert (await get_status(client, job_id))["status"] == state


# -- purge, health, requests ----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_purge_cancels_queued_jobs_and_leaves_running_ones(
    serve: Serve, script: ScriptFactory, prefix: str
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    async with server.client() as client:
        running, *waiting = [await submit_job(client, prefix) for _ in range(4)]
        other_job = await submit_job(client)
        await server.events.wait(RequestStarted)
        sync = asyncio.create_task(client.post(f"{prefix}/runsync", json={"input": INPUT}))
        await server.wait_until(lambda: len(server.tasks) == 1)
        response = await client.post(f"{prefix}/purge-queue")
        assert response.json() == {"removed": 4, "status": "completed"}
        assert (await sync).json()["status"] == "CANCELLED"
        for job_id in waiting:
            assert await get_status(client, job_id, prefix) == {"id": job_id, "status": "CANCELLED"}
        assert (await get_status(client, running, prefix))["status"] == "IN_PROGRESS"
        assert (await get_status(client, other_job))["status"] == "IN_QUEUE"
        second_response = await client.post(f"{prefix}/purge-queue", json={})
        assert second_response.json() == {"removed": 0, "status": "completed"}
        assert server.events.of(RequestStarted)[1:] == []


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_reset_cancels_and_removes_all_jobs_of_the_endpoint(
    serve: Serve, script: ScriptFactory, prefix: str
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    async with server.client() as client:
        jobs = [await submit_job(client, prefix) for _ in range(3)]
        other_job = await submit_job(client)
        await server.events.wait(RequestStarted)
        sync = asyncio.create_task(client.post(f"{prefix}/runsync", json={"input": INPUT}))
        await server.wait_until(lambda: len(server.tasks) == 1)
        response = await client.post(f"{prefix}/reset")
        assert response.json() == {"removed": 4, "status": "completed"}
        assert (await sync).json()["status"] == "CANCELLED"
        async with asyncio.timeout(DEADLINE_S):
            await server.wait_until_idle()
        for job_id in jobs:
            assert (await client.get(f"{prefix}/status/{job_id}")).status_code == 404
        assert (await client.get(f"{prefix}/requests")).json() == {"requests": []}
        assert (await get_status(client, other_job))["status"] == "IN_QUEUE"
        second_response = await client.post(f"{prefix}/reset", json={})
        assert second_response.json() == {"removed": 0, "status": "completed"}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_health_counts_jobs_and_workers(serve: Serve, method: str) -> None:
    server = await serve()
    async with server.client() as client:
        worker = ScriptedWorker(client)
        for _ in range(5):
            await submit_job(client)
        await worker.post_result(await worker.take_job(), output=1)
        await worker.post_result(await worker.take_job(), error="no")
        await worker.take_job()
        health = (await client.request(method, f"{OTHER}/health")).json()
        assert health["jobs"] == {
            "completed": 1,
            "failed": 1,
            "inProgress": 1,
            "inQueue": 2,
            "retried": 0,
        }
        assert health["workers"].keys() >= {"idle", "initializing", "ready", "running", "throttled"}
        assert health["workers"]["running"] == 1
        unknown = (await client.request(method, "/v2/never-named/health")).json()
        assert set(unknown["jobs"].values()) | set(unknown["workers"].values()) == {0}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_requests_are_listed_newest_first_and_single_ones_have_their_input(
    serve: Serve, method: str
) -> None:
    server = await serve()
    async with server.client() as client:
        worker = ScriptedWorker(client)
        first, second = (
            await submit_job(client),
            await submit_job(client, webhook="http://127.0.0.1:9/"),
        )
        await submit_job(client, "/v2/third")
        await worker.post_result(await worker.take_job(), output={"ok": True})
        requests = (await client.request(method, f"{OTHER}/requests")).json()
        assert requests == {
            "requests": [await get_status(client, second), await get_status(client, first)]
        }
        done = (await client.request(method, f"{OTHER}/requests/{first}")).json()
        assert done == await get_status(client, first) | {"input": INPUT}
        waiting = (await client.request(method, f"{OTHER}/requests/{second}")).json()
        assert waiting["webhook"] == "http://127.0.0.1:9/"
