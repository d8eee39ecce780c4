"""Crashes of the engine process do not stop the server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.hooks import HostLoaded, HostLost, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, Server, join_text, parse_chunks

ROUTE = "/v1/completions"
HANG = {"hang_s": 3600}


@asynccontextmanager
async def poll_health(server: Server) -> AsyncIterator[list[dict[str, Any]]]:
    """Poll /health during the block; yield the list of its responses."""
    responses: list[dict[str, Any]] = []
    stop = asyncio.Event()

    async def poll() -> None:
        async with server.client() as client:
            while not stop.is_set():
                response = await client.get("/health", timeout=40)
                responses.append({"code": response.status_code, **response.json()})

    task = asyncio.create_task(poll())
    try:
        yield responses
    finally:
        stop.set()
        await task
    assert responses


def kill_engine(server: Server) -> None:
    pid = getattr(server.engine._host, "pid", None)
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)


async def test_kill_in_the_middle_of_four_streams(serve: Serve, script: ScriptFactory) -> None:
    path = script({"when": "hang", "pieces": ["so far", HANG]}, {}, slots=4)
    server = await serve(path, engine_isolation="process")
    async with poll_health(server) as health:
        wires = [await RawConnection.connect(server.port) for _ in range(4)]
        for wire in wires:
            await wire.post(ROUTE, {"prompt": "hang", "stream": True})
        firsts = []
        for wire in wires:
            assert (await wire.read_head())[0] == 200
            firsts.append(await wire.read_chunk())
        assert server.engine.running == 4
        kill_engine(server)
        for wire, body in zip(wires, firsts, strict=True):
            while chunk := await wire.read_chunk():
                body += chunk
            *chunks, error = parse_chunks(body)
            assert join_text(chunks) == "so far"
            assert error["error"]["code"] == 500
            assert "SIGKILL" in error["error"]["message"]
            # The connection and the server survive the crash.
            await wire.post(ROUTE, {"prompt": "all is well"})
        for wire in wires:
            status, _, body = await wire.read_response()
            assert (status, b'"text":"all is well"' in body) == (200, True)
            wire.close()
        (lost,) = server.events.of(HostLost)
        assert not lost.dead
        assert len(server.events.of(HostLoaded)) == 2
    assert {each["code"] for each in health} == {200}
    assert health[-1]["engine"]["restarts"] == 1
    await server.wait_until_idle()


async def test_kill_before_the_first_token_is_an_http_error(
    serve: Serve, script: ScriptFactory
) -> None:
    path = script({"when": "hang", "pieces": [HANG]}, {}, slots=4)
    server = await serve(path, engine_isolation="process")
    async with server.client() as client:
        calls = [
            asyncio.create_task(client.post(ROUTE, json={"prompt": "hang", "stream": stream}))
            for stream in (True, False)
        ]
        job = asyncio.create_task(client.post("/runsync", json={"input": {"prompt": "hang"}}))
        await server.events.wait(RequestStarted, 3)
        kill_engine(server)
        for call in calls:
            response = await call
            assert response.status_code == 500
            assert "SIGKILL" in response.json()["error"]["message"]
        # A job runs again, and fails when it was running at three crashes.
        for count in (4, 5):
            await server.events.wait(RequestStarted, count)
            kill_engine(server)
        failed = (await job).json()
        assert failed["status"] == "FAILED"
        assert failed["error"].startswith("the job was started and lost 3 times; the last time: ")
        assert "SIGKILL" in failed["error"]
        assert (await client.post(ROUTE, json={"prompt": "ok"})).status_code == 200
        good = (await client.post("/runsync", json={"input": {"prompt": "ok"}})).json()
        assert good["status"] == "COMPLETED"


async def test_segfault_of_one_request_is_its_error(serve: Serve, script: ScriptFactory) -> None:
    path = script({"when": "die", "pieces": ["so ", {"signal": "SIGSEGV", "delay_ms": 30}]}, {})
    server = await serve(path, engine_isolation="process")
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "die", "stream": True})
        *chunks, error = parse_chunks(response.content)
        assert join_text(chunks) == "so "
        assert "SIGSEGV" in error["error"]["message"]
        assert (await client.post(ROUTE, json={"prompt": "ok"})).status_code == 200


async def test_requests_get_503_and_jobs_wait_while_a_restart_takes_long(
    serve: Serve, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:  # R54
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 30.0)
    monkeypatch.setattr("engine.availability.SHORT_RESTART_S", 0.1)
    server = await serve(script({}), engine_isolation="process")
    async with server.client() as client:
        assert (await client.post(ROUTE, json={"prompt": "ok"})).status_code == 200
        getattr(server.engine, "_host")._load_s = 0.0  # noqa: B009
        kill_engine(server)
        await server.events.wait(HostLost)
        for stream in (False, True):
            response = await client.post(ROUTE, json={"prompt": "ok", "stream": stream})
            assert response.status_code == 503
            assert 1 <= int(response.headers["retry-after"]) <= 31
            error = response.json()["error"]
            assert error["message"] == "Completion service temporarily unavailable"
            reason = error["details"]["reason"]
            assert reason.startswith("the engine is restarting in ")
            assert "after 1 crash: the engine process was killed by SIGKILL" in reason
        job = (await client.post("/run", json={"input": {"prompt": "ok"}})).json()
        assert (await client.get(f"/status/{job['id']}")).json()["status"] == "IN_QUEUE"
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "restarting")
        assert health.json()["engine"]["state"] == "restarting"
        assert health.json()["engine"]["trouble"].startswith("restarting in ")
        workers = (await client.get("/v2/default/health")).json()["workers"]
        assert (workers["idle"], workers["unhealthy"]) == (0, server.engine.slots)
        metrics = (await client.get("/metrics")).text
        assert 'worker_rkllm_engine_state{state="restarting"} 1' in metrics
        description = (await client.get("/console/description")).json()
        assert description["trouble"].startswith("restarting in ")
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/nowhere")).status_code == 404


async def test_engine_process_that_ignores_an_abort_is_replaced(
    serve: Serve, script: ScriptFactory
) -> None:
    # R31: a run that does not end after its client has left costs the engine its process.
    # The script ignores aborts from its first piece: after a token, it could still handle one.
    deaf = {"when": "deaf", "pieces": [{"hang_s": 3600, "deaf": True}]}
    path = script(deaf, {}, slots=1)
    server = await serve(path, engine_isolation="process", abort_grace_s=0.3)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "deaf", "stream": True})
        await server.events.wait(RequestStarted)
    await server.events.wait(HostLost)
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "all is well"})
        assert response.json()["choices"][0]["text"] == "all is well"
    await server.wait_until_idle()
