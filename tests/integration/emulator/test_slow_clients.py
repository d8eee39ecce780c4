"""A thousand slow clients do not delay the answers to other clients."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import run_emulator
from tests.integration.emulator.serving import RawConnection, build_request_head
from tests.waiting import poll_until, wait_until

IDLE, IN_HEAD, IN_BODY, IN_STREAM = 300, 250, 250, 200
# A slower answer is the fault of the machine: even `true` then takes as long.
LIMIT_S = 0.1
STREAM = {"when": "stream", "pieces": ["bla " * 200], "repeat": -1, "delay_ms": 200}


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """Raise the limit of open files to hold both ends of all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.fail(f"this machine allows only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_others_are_answered_beside_a_thousand_slow_clients(script: ScriptFactory) -> None:
    await measure_beside_slow_clients(script, requests=5)


@pytest.mark.timing
async def test_thousand_slow_clients_do_not_delay_others(script: ScriptFactory) -> None:
    latencies_s = sorted(await measure_beside_slow_clients(script, requests=50))
    assert latencies_s[-3] < LIMIT_S, latencies_s


async def measure_beside_slow_clients(script: ScriptFactory, requests: int) -> list[float]:
    """Return how long each request for `/health` took beside a thousand slow clients."""
    path = script(STREAM, {"pieces": ["all well"]}, slots=256, context_length=10**9)
    settings = {
        "MODEL_PATH": str(path),
        "MAX_CONCURRENCY": "256",
        "HEAD_TIMEOUT_S": "60",
    }
    body = json.dumps({"prompt": "stream", "stream": True}).encode()
    async with run_emulator(settings, "--port", "0", grace_s=0.2) as server:
        await server.wait_until_listening()
        open_files, _ = server.state
        with ExitStack() as connections:

            async def connect(start: bytes, receive_buffer: int | None = None) -> None:
                wire = connections.enter_context(
                    await RawConnection.connect(server.port, receive_buffer)
                )
                await wire.send(start)

            for _ in range(IDLE):
                await connect(b"")
            for _ in range(IN_HEAD):
                await connect(b"POST /run HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
            for number in range(IN_BODY):
                target = "/run" if number % 2 else "/v1/completions"
                await connect(
                    build_request_head("POST", target, "content-length: 500\r\n") + b'{"input": "'
                )
            for _ in range(IN_STREAM):
                length = f"content-length: {len(body)}\r\n"
                await connect(build_request_head("POST", "/v1/completions", length) + body, 4096)
            await wait_until(lambda: server.state[0] - open_files >= 1000)
            async with server.client() as client:

                async def are_streams_running() -> bool:
                    engine = (await client.get("/health")).json()["engine"]
                    return bool(engine["running"] >= IN_STREAM)

                await poll_until(are_streams_running)
                latencies_s = []
                for _ in range(requests):
                    started_at = time.perf_counter()
                    assert (await client.get("/health")).status_code == 200
                    latencies_s.append(time.perf_counter() - started_at)
                    await asyncio.sleep(0.02)
                answer = await client.post("/v1/completions", json={"prompt": "x"})
                assert answer.json()["choices"][0]["text"] == "all well"
                job = await client.post("/runsync", json={"input": {"prompt": "x"}})
                assert job.json()["status"] == "COMPLETED"
        await wait_until(lambda: server.state[0] <= open_files + 2)
    return latencies_s
