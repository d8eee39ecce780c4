"""Webhooks of jobs sent over HTTP: for every end, and across a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from emulator.settings.emulator_settings import EmulatorSettings
from engine.hooks import RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import wait_for_status
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.integration.emulator.serving import run_server
from tests.ports import free_port
from tests.unit.emulator.receiver import Receiver, receiving

HANG = {"hang_s": 3600}
INPUT: dict[str, Any] = {"prompt": "hello there"}
OTHER = "/v2/other"


async def sent(
    client: httpx2.AsyncClient, receiver: Receiver, prefix: str = OTHER, **body: Any
) -> str:
    body = {"input": INPUT, "webhook": receiver.url} | body
    job_id: str = (await client.post(f"{prefix}/run", json=body)).json()["id"]
    return job_id


async def shown(client: httpx2.AsyncClient, job_id: str, prefix: str = OTHER) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"{prefix}/requests/{job_id}")).json()
    return found


@pytest.mark.parametrize("prefix", ["", "/v2/default"])
async def test_completed_job_is_told_of_with_all_there_is(serve: Serve, prefix: str) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        job_id = await sent(client, receiver, prefix)
        (post,) = await receiver.got(1)
        assert post == await shown(client, job_id, prefix)
        assert (post["id"], post["status"], post["webhook"]) == (job_id, "COMPLETED", receiver.url)
        assert post["input"] == INPUT
        assert post["output"]["choices"][0]["text"] == "hello there"
        assert type(post["delayTime"]) is int
        assert type(post["executionTime"]) is int
        assert post["workerId"] == "local"


async def test_runsync_is_answered_and_told_of(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        body = {"input": INPUT, "webhook": receiver.url}
        job = (await client.post("/runsync", json=body)).json()
        (post,) = await receiver.got(1)
        assert post == job | body


async def test_failed_job_is_told_of(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["so far", {"error": "out of memory"}]}))
    async with server.client() as client, receiving() as receiver:
        job_id = await sent(client, receiver, "")
        (post,) = await receiver.got(1)
        assert (post["id"], post["status"], post["error"]) == (job_id, "FAILED", "out of memory")
        assert "output" not in post


async def test_job_that_ran_for_too_long_is_told_of(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), min_execution_timeout_ms=1)
    async with server.client() as client, receiving() as receiver:
        await sent(client, receiver, "", policy={"executionTimeout": 50})
        (post,) = await receiver.got(1)
        assert post["status"] == "TIMED_OUT"
        assert "executionTimeout" in post["error"]


async def test_job_that_is_taken_back_is_told_of(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    async with server.client() as client, receiving() as receiver:
        running = await sent(client, receiver, "")
        await server.events.wait(RequestStarted)
        waiting = await sent(client, receiver, "")
        purged = [await sent(client, receiver) for _ in range(2)]
        for job_id in (running, waiting):
            await client.post(f"/cancel/{job_id}")
        await client.post(f"{OTHER}/purge-queue")
        posts = await receiver.got(4)
        assert {post["id"] for post in posts} == {running, waiting, *purged}
        assert {post["status"] for post in posts} == {"CANCELLED"}


async def test_job_that_was_lost_too_often_is_told_of(serve: Serve) -> None:
    server = await serve(worker_grace_s=0, lost_jobs="fail")
    async with server.client() as client, receiving() as receiver:
        job_id, worker = await sent(client, receiver), ScriptedWorker(client)
        await worker.take_job()
        await worker.drop_connection(server)
        (post,) = await receiver.got(1)
        assert (post["id"], post["status"]) == (job_id, "FAILED")
        assert "lost" in post["error"]


async def test_job_that_is_run_again_is_told_of_again(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        job_id, worker = await sent(client, receiver), ScriptedWorker(client)
        await worker.post_result(await worker.take_job(), error="no luck")
        await receiver.got(1)
        await client.post(f"{OTHER}/retry/{job_id}")
        await worker.post_result(await worker.take_job(), output="luck")
        first, second = await receiver.got(2)
        assert (first["status"], second["status"]) == ("FAILED", "COMPLETED")


async def test_refusal_is_tried_again_as_often_as_set(serve: Serve) -> None:
    server = await serve(webhook_pause_s=0.01, webhook_tries=3)
    async with server.client() as client, receiving(500, 302, 404) as receiver:
        job_id = await sent(client, receiver, "")
        posts = await receiver.got(3)
        assert [post["id"] for post in posts] == [job_id] * 3
        # The next is told of; nobody came a fourth time in between.
        second = await sent(client, receiver, "")
        assert (await receiver.got(4))[3]["id"] == second


async def test_receiver_that_starts_late_is_found(serve: Serve) -> None:
    server = await serve(webhook_pause_s=0.02, webhook_tries=1_000)
    port = free_port()
    async with server.client() as client:
        late = Receiver(port, ())
        job_id = await sent(client, late, "")
        await wait_for_status(client, job_id, "COMPLETED", "")
        async with receiving(port=port) as receiver:
            assert (await receiver.got(1))[0]["id"] == job_id


async def test_slow_receivers_hold_nobody_up(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving(*[""] * 20) as receiver:
        for _ in range(20):
            await sent(client, receiver, "")
        await receiver.got(16)
        job = (await client.post("/runsync", json={"input": INPUT})).json()
        assert job["status"] == "COMPLETED"


def lasting(folder: Path, **settings: Any) -> EmulatorSettings:
    """Settings of a server whose jobs are there again when it is started a second time."""
    return EmulatorSettings(
        engine="scripted",
        engine_isolation="thread",
        job_db=str(folder / "jobs.sqlite3"),
        drain_s=0,
        **settings,
    )


async def test_who_was_not_told_is_told_after_a_restart(tmp_path: Path) -> None:
    settings = lasting(tmp_path, webhook_pause_s=3600, webhook_tries=2)
    # One says yes, one no and then hears no more, one never answers.
    async with receiving() as fine, receiving(500) as poor, receiving("") as mute:
        async with run_server(settings) as server, server.client() as client:
            told, refused, waiting = [
                await sent(client, receiver, "") for receiver in (fine, poor, mute)
            ]
            for receiver in (fine, poor, mute):
                await receiver.got(1)
            # By the time that this is answered, the one that said yes has been heard.
            await client.post("/runsync", json={"input": INPUT})
        async with run_server(settings) as server, server.client() as client:
            assert [post["id"] for post in await poor.got(2)] == [refused] * 2
            assert [post["id"] for post in await mute.got(2)] == [waiting] * 2
            assert mute.posts[0] == mute.posts[1]
        async with run_server(settings) as server, server.client() as client:
            # Now all are told; the next is the first to be.
            last = await sent(client, fine, "")
            assert [post["id"] for post in await fine.got(2)] == [told, last]
            assert (len(poor.posts), len(mute.posts)) == (2, 2)


async def test_who_was_given_up_is_not_told_after_a_restart(tmp_path: Path) -> None:
    settings = lasting(tmp_path, webhook_tries=1)
    async with receiving(500) as receiver:
        async with run_server(settings) as server, server.client() as client:
            given_up = await sent(client, receiver, "")
            await receiver.got(1)
            # Told one after the other on this connection's loop: the first is over by then.
            await sent(client, receiver, "")
            await receiver.got(2)
        async with run_server(settings) as server, server.client() as client:
            await sent(client, receiver, "")
            posts = await receiver.got(3)
        assert [post["id"] for post in posts].count(given_up) == 1
