"""Webhooks of jobs over HTTP: for each final status, and after a restart."""

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


async def submit_with_webhook(
    client: httpx2.AsyncClient, receiver: Receiver, prefix: str = OTHER, **body: Any
) -> str:
    body = {"input": INPUT, "webhook": receiver.url} | body
    job_id: str = (await client.post(f"{prefix}/run", json=body)).json()["id"]
    return job_id


async def get_request(
    client: httpx2.AsyncClient, job_id: str, prefix: str = OTHER
) -> dict[str, Any]:
    request: dict[str, Any] = (await client.get(f"{prefix}/requests/{job_id}")).json()
    return request


@pytest.mark.parametrize("prefix", ["", "/v2/default"])
async def test_webhook_of_a_completed_job_has_all_fields(serve: Serve, prefix: str) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        job_id = await submit_with_webhook(client, receiver, prefix)
        (post,) = await receiver.got(1)
        assert post == await get_request(client, job_id, prefix)
        assert (post["id"], post["status"], post["webhook"]) == (job_id, "COMPLETED", receiver.url)
        assert post["input"] == INPUT
        assert post["output"]["choices"][0]["text"] == "hello there"
        assert type(post["delayTime"]) is int
        assert type(post["executionTime"]) is int
        assert post["workerId"] == "local"


async def test_runsync_returns_the_job_and_sends_a_webhook(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        body = {"input": INPUT, "webhook": receiver.url}
        job = (await client.post("/runsync", json=body)).json()
        (post,) = await receiver.got(1)
        assert post == job | body


async def test_failed_job_sends_a_webhook(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["so far", {"error": "out of memory"}]}))
    async with server.client() as client, receiving() as receiver:
        job_id = await submit_with_webhook(client, receiver, "")
        (post,) = await receiver.got(1)
        assert (post["id"], post["status"], post["error"]) == (job_id, "FAILED", "out of memory")
        assert "output" not in post


async def test_timed_out_job_sends_a_webhook(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}), min_execution_timeout_ms=1)
    async with server.client() as client, receiving() as receiver:
        await submit_with_webhook(client, receiver, "", policy={"executionTimeout": 50})
        (post,) = await receiver.got(1)
        assert post["status"] == "TIMED_OUT"
        assert "executionTimeout" in post["error"]


async def test_cancelled_and_purged_jobs_send_webhooks(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    async with server.client() as client, receiving() as receiver:
        running = await submit_with_webhook(client, receiver, "")
        await server.events.wait(RequestStarted)
        waiting = await submit_with_webhook(client, receiver, "")
        purged = [await submit_with_webhook(client, receiver) for _ in range(2)]
        for job_id in (running, waiting):
            await client.post(f"/cancel/{job_id}")
        await client.post(f"{OTHER}/purge-queue")
        posts = await receiver.got(4)
        assert {post["id"] for post in posts} == {running, waiting, *purged}
        assert {post["status"] for post in posts} == {"CANCELLED"}


async def test_job_that_was_lost_too_often_sends_a_webhook(serve: Serve) -> None:
    server = await serve(worker_grace_s=0, max_losses=1)
    async with server.client() as client, receiving() as receiver:
        job_id, worker = await submit_with_webhook(client, receiver), ScriptedWorker(client)
        await worker.take_job()
        await worker.drop_connection(server)
        (post,) = await receiver.got(1)
        assert (post["id"], post["status"]) == (job_id, "FAILED")
        assert "lost" in post["error"]


async def test_retried_job_sends_a_second_webhook(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        job_id, worker = await submit_with_webhook(client, receiver), ScriptedWorker(client)
        await worker.post_result(await worker.take_job(), error="no luck")
        await receiver.got(1)
        await client.post(f"{OTHER}/retry/{job_id}")
        await worker.post_result(await worker.take_job(), output="luck")
        first, second = await receiver.got(2)
        assert (first["status"], second["status"]) == ("FAILED", "COMPLETED")


async def test_refused_webhook_is_retried_up_to_the_limit(serve: Serve) -> None:
    server = await serve(webhook_pause_s=0.01, webhook_tries=3)
    async with server.client() as client, receiving(500, 302, 404) as receiver:
        job_id = await submit_with_webhook(client, receiver, "")
        posts = await receiver.got(3)
        assert [post["id"] for post in posts] == [job_id] * 3
        # The next POST is the second job's: there was no fourth attempt for the first.
        second = await submit_with_webhook(client, receiver, "")
        assert (await receiver.got(4))[3]["id"] == second


async def test_webhook_reaches_a_receiver_that_starts_late(serve: Serve) -> None:
    server = await serve(webhook_pause_s=0.02, webhook_tries=1_000)
    port = free_port()
    async with server.client() as client:
        late = Receiver(port, ())
        job_id = await submit_with_webhook(client, late, "")
        await wait_for_status(client, job_id, "COMPLETED", "")
        async with receiving(port=port) as receiver:
            assert (await receiver.got(1))[0]["id"] == job_id


async def test_slow_receivers_do_not_delay_jobs(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving(*[""] * 20) as receiver:
        for _ in range(20):
            await submit_with_webhook(client, receiver, "")
        await receiver.got(16)
        job = (await client.post("/runsync", json={"input": INPUT})).json()
        assert job["status"] == "COMPLETED"


def persistent_settings(folder: Path, **settings: Any) -> EmulatorSettings:
    """Return the settings of a server whose jobs survive a restart."""
    return EmulatorSettings(
        engine="scripted",
        engine_isolation="thread",
        job_db=str(folder / "jobs.sqlite3"),
        drain_s=0,
        **settings,
    )


async def test_undelivered_webhooks_are_sent_after_a_restart(tmp_path: Path) -> None:
    settings = persistent_settings(tmp_path, webhook_pause_s=3600, webhook_tries=2)
    # One receiver accepts, one refuses the first attempt, one never answers.
    async with receiving() as accepting, receiving(500) as refusing, receiving("") as silent:
        async with run_server(settings) as server, server.client() as client:
            delivered, refused, waiting = [
                await submit_with_webhook(client, receiver, "")
                for receiver in (accepting, refusing, silent)
            ]
            for receiver in (accepting, refusing, silent):
                await receiver.got(1)
            # When this job is answered, the accepted delivery has been recorded.
            await client.post("/runsync", json={"input": INPUT})
        async with run_server(settings) as server, server.client() as client:
            assert [post["id"] for post in await refusing.got(2)] == [refused] * 2
            assert [post["id"] for post in await silent.got(2)] == [waiting] * 2
            assert silent.posts[0] == silent.posts[1]
        async with run_server(settings) as server, server.client() as client:
            # All webhooks are delivered now: the next POST is that of a new job.
            last = await submit_with_webhook(client, accepting, "")
            assert [post["id"] for post in await accepting.got(2)] == [delivered, last]
            assert (len(refusing.posts), len(silent.posts)) == (2, 2)


async def test_abandoned_webhook_is_not_sent_after_a_restart(tmp_path: Path) -> None:
    settings = persistent_settings(tmp_path, webhook_tries=1)
    async with receiving(500) as receiver:
        async with run_server(settings) as server, server.client() as client:
            abandoned = await submit_with_webhook(client, receiver, "")
            await receiver.got(1)
            # Webhooks to one receiver are sent in order: the first has been abandoned by now.
            await submit_with_webhook(client, receiver, "")
            await receiver.got(2)
        async with run_server(settings) as server, server.client() as client:
            await submit_with_webhook(client, receiver, "")
            posts = await receiver.got(3)
        assert [post["id"] for post in posts].count(abandoned) == 1
