"""Webhooks that start jobs in an endless loop, and redirects into the server's own network."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.security.internal_server import internal_server
from tests.security.raw_http import exchange
from tests.unit.emulator.receiver import receiving

INPUT = {"prompt": "hello there"}
JSON = [("Host", "127.0.0.1"), ("Content-Type", "application/json")]
# A job and the three jobs that webhooks may start one after another.
MAX_JOBS = 4
OBSERVATION_S = 1.5


async def jobs_of(port: int) -> int:
    counts = json.loads((await exchange(port, "GET", "/v2/default/health")).body)["jobs"]
    return sum(int(counts[state]) for state in ("inQueue", "inProgress", "completed", "failed"))


@pytest.mark.long_except("run")
@pytest.mark.parametrize("route", ["run", "runsync"])
async def test_webhook_that_calls_run_of_the_same_server_does_not_loop(
    serve: Serve, route: str
) -> None:
    server = await serve(webhook_tries=1)
    url = f"http://127.0.0.1:{server.port}/{route}"
    body = json.dumps({"input": INPUT, "webhook": url}).encode()
    assert (await exchange(server.port, "POST", "/run", JSON, body)).status == 200
    await asyncio.sleep(OBSERVATION_S)
    assert await jobs_of(server.port) <= MAX_JOBS


async def test_webhooks_of_two_servers_that_call_each_other_do_not_loop(serve: Serve) -> None:
    first, second = await serve(webhook_tries=1), await serve(webhook_tries=1)
    urls = [f"http://127.0.0.1:{each.port}/run" for each in (first, second)]
    body = json.dumps({"input": INPUT, "webhook": urls[1]}).encode()
    assert (await exchange(first.port, "POST", "/run", JSON, body)).status == 200
    await asyncio.sleep(OBSERVATION_S)
    assert await jobs_of(first.port) + await jobs_of(second.port) <= MAX_JOBS


async def test_webhook_that_calls_retry_of_its_job_does_not_loop(serve: Serve) -> None:
    server = await serve(webhook_tries=1)
    depth = [*JSON, ("X-Webhook-Depth", "4")]
    answer = await exchange(server.port, "POST", "/retry/any", depth, b"")
    assert answer.status == 400


async def test_depth_of_a_job_is_sent_with_its_webhook_and_to_no_worker(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, receiving() as receiver:
        body = json.dumps({"input": INPUT, "webhook": receiver.url}).encode()
        depth = [*JSON, ("X-Webhook-Depth", "2")]
        assert (await exchange(server.port, "POST", "/v2/other/run", depth, body)).status == 200
        worker = ScriptedWorker(client)
        job = await worker.take_job()
        assert job.keys() == {"id", "input", "webhook"}
        await worker.post_result(job, output="done")
        (post,) = await receiver.got(1)
        assert "webhookDepth" not in post
        assert "x-webhook-depth: 3" in receiver.heads[0].lower()


@pytest.mark.parametrize("depth", ["4", "999999999999", "-1", "1.5", "", "\u00b2"])
async def test_forged_depth_is_refused(serve: Serve, depth: str) -> None:
    server = await serve()
    headers = [*JSON, ("X-Webhook-Depth", depth)]
    body = json.dumps({"input": INPUT}).encode()
    answer = await exchange(server.port, "POST", "/run", headers, body)
    assert answer.status == 400
    assert b"x-webhook-depth must be a number up to 3" in answer.body


async def test_job_that_a_webhook_started_once_is_accepted(serve: Serve) -> None:
    server = await serve()
    headers = [*JSON, ("X-Webhook-Depth", "1")]
    body = json.dumps({"input": INPUT}).encode()
    assert (await exchange(server.port, "POST", "/runsync", headers, body)).status == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_of_a_webhook_is_not_followed(serve: Serve, status: int) -> None:
    server = await serve(webhook_tries=1)
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    async with server.client() as client, internal_server(ok) as internal:
        location = f"http://127.0.0.1:{internal.port}/secret"
        head = f"HTTP/1.1 {status} x\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
        async with receiving(head) as receiver:
            await client.post("/runsync", json={"input": INPUT, "webhook": receiver.url})
            await receiver.got(1)
            # The next webhook is delivered after it.
            await client.post("/runsync", json={"input": INPUT, "webhook": receiver.url})
            await receiver.got(2)
        assert internal.connections == 0
