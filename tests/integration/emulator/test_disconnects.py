"""A client that disconnects stops its generation immediately and leaks nothing (R31)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
from collections import Counter
from typing import Any

import pytest

from engine.hooks import FirstToken, RequestEnded, RequestQueued, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.serving import RawConnection, Server, join_text, parse_chunks

ROUTE = "/v1/completions"
HANG = {"hang_s": 3600}
# The script for all other prompts: it echoes the prompt, so text of another answer would show.
ECHO: dict[str, Any] = {}


async def assert_clean(server: Server, aborted: int) -> None:
    """Check that generations were aborted, slots are free, and the next answers are complete."""
    ended = await server.events.wait(RequestEnded, aborted)
    assert all(event.aborted for event in ended)
    await server.wait_until_idle()
    async with server.client() as client:
        health = (await client.get("/health")).json()["engine"]
        assert (health["running"], health["waiting"]) == (0, 0)
        streamed = await client.post(ROUTE, json={"prompt": "all is well", "stream": True})
        assert join_text(parse_chunks(streamed.content)) == "all is well"
        answer = (await client.post(ROUTE, json={"prompt": "all is well"})).json()
        assert answer["choices"][0]["text"] == "all is well"


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_before_the_first_token(
    serve: Serve, script: ScriptFactory, stream: bool, isolation: str
) -> None:
    path = script({"when": "leave", "pieces": [HANG, "late"]}, ECHO, slots=1)
    server = await serve(path, engine_isolation=isolation)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "leave", "stream": stream})
        await server.events.wait(RequestStarted)
    await assert_clean(server, 1)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_disconnect_in_mid_stream(
    serve: Serve, script: ScriptFactory, isolation: str
) -> None:
    path = script({"when": "leave", "pieces": ["early ", HANG, "late"]}, ECHO, slots=1)
    server = await serve(path, engine_isolation=isolation)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "leave", "stream": True})
        await wire.read_head()
        assert b"early" in await wire.read_chunk()
    await assert_clean(server, 1)


async def test_disconnect_during_an_answer_that_is_not_streamed(
    serve: Serve, script: ScriptFactory
) -> None:
    path = script({"when": "leave", "pieces": ["early ", HANG, "late"]}, ECHO, slots=1)
    server = await serve(path)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "leave"})
        await server.events.wait(RequestStarted)
        (stream,) = server.engine._streams
        # The hook reports the first token only at the end.
        await server.wait_until(lambda: stream._first_token_at is not None)
    await assert_clean(server, 1)


async def test_disconnect_while_the_model_generates(serve: Serve, script: ScriptFactory) -> None:
    endless = {"when": "leave", "pieces": ["bla "], "repeat": -1, "delay_ms": 1}
    server = await serve(script(endless, ECHO, slots=1))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "leave", "stream": True})
        await wire.read_head()
        for _ in range(10):
            await wire.read_chunk()
    await assert_clean(server, 1)


@pytest.mark.long_except("True")
@pytest.mark.parametrize("reset", [False, True])
async def test_disconnect_of_a_client_that_does_not_read(
    serve: Serve, script: ScriptFactory, reset: bool
) -> None:
    flood = {"when": "leave", "pieces": ["x" * 20_000], "repeat": -1, "delay_ms": 1}
    server = await serve(script(flood, ECHO, slots=1, context_length=10**9))
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(ROUTE, {"prompt": "leave", "stream": True})
        await wire.read_head()
        # Uvicorn pauses writing once its buffer is full: the server now waits in `send`.
        (connection,) = server.connections
        await server.wait_until(lambda: connection.flow.write_paused)
        assert server.events.of(RequestEnded) == []
        wire.close(reset=reset)
    await assert_clean(server, 1)


async def test_client_that_never_reads_loses_only_its_own_answer(
    serve: Serve, script: ScriptFactory
) -> None:
    flood = {"when": "leave", "pieces": ["x" * 50_000], "repeat": -1, "delay_ms": 2}
    server = await serve(script(flood, ECHO, slots=1, context_length=10**9))
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(ROUTE, {"prompt": "leave", "stream": True}, "connection: close\r\n")
        (ended,) = await server.events.wait(RequestEnded)
        assert type(ended.error).__name__ == "ConsumerTooSlow"
        async with server.client() as client:
            answer = (await client.post(ROUTE, json={"prompt": "all is well"})).json()
            assert answer["choices"][0]["text"] == "all is well"
        # The client still gets the error if it starts to read.
        body = await wire.read_all()
        assert b'"error":{"message":"more than' in body
        assert b"data: [DONE]\n\n" in body


async def test_disconnect_while_waiting_for_a_slot(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"when": "leave", "pieces": ["a", HANG]}, ECHO, slots=1))
    with await RawConnection.connect(server.port) as running:
        await running.post(ROUTE, {"prompt": "leave", "stream": True})
        await running.read_head()
        for stream in (False, True):
            with await RawConnection.connect(server.port) as waiting:
                await waiting.post(ROUTE, {"prompt": "leave", "stream": stream})
                await server.events.wait(RequestQueued, 1 + stream)
                assert server.engine.waiting == 1
            await server.wait_until(lambda: len(server.tasks) == 1)
            assert server.engine.waiting == 0
    await assert_clean(server, 1)


async def test_disconnect_while_the_model_loads(serve: Serve, gate: Gate) -> None:
    server = await serve(gate.path)
    for stream in (False, True):
        with await RawConnection.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "x", "stream": stream})
            await server.wait_until(lambda: server.engine.running == 1)
        await server.wait_until_idle()
    await gate.open()
    await assert_clean(server, 0)


async def test_disconnects_do_not_affect_other_clients(serve: Serve, script: ScriptFactory) -> None:
    slow = {"when": "slow", "pieces": [{"text": "word ", "delay_ms": 2}], "repeat": 100}
    server = await serve(script(slow, {"when": "leave", "pieces": ["a", HANG]}, ECHO, slots=4))

    async def read_completely() -> None:
        async with server.client() as client:
            response = await client.post(ROUTE, json={"prompt": "slow", "stream": True})
        assert join_text(parse_chunks(response.content)) == "word " * 100

    async def disconnect_repeatedly() -> None:
        for _ in range(5):
            with await RawConnection.connect(server.port) as wire:
                await wire.post(ROUTE, {"prompt": "leave", "stream": True})
                await wire.read_head()
                await wire.read_chunk()

    await asyncio.gather(
        read_completely(), disconnect_repeatedly(), disconnect_repeatedly(), read_completely()
    )
    await server.wait_until_idle()


async def test_disconnect_of_a_runsync_client_does_not_cancel_the_job(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", HANG]}, slots=1))
    with await RawConnection.connect(server.port) as wire:
        await wire.post("/runsync", {"input": {"prompt": "x"}})
        (started,) = await server.events.wait(RequestStarted)
    await server.wait_until_no_requests()
    async with server.client() as client:
        job = (await client.get(f"/status/{started.request_id}")).json()
        # The client does not know the job's id, but can find the job in the lists.
        (listed,) = (await client.get("/requests")).json()["requests"]
        (console_job,) = (await client.get("/console/jobs")).json()["jobs"]
    assert job["status"] == "IN_PROGRESS"
    assert listed["id"] == console_job["id"] == started.request_id
    assert server.engine.running == 1


def list_open_files() -> set[str]:
    """Return the open files of this process, each with its number and its target."""
    descriptions = set()
    for number in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is already closed.
        with contextlib.suppress(FileNotFoundError):
            descriptions.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return descriptions


async def test_random_disconnects_leave_no_files_tasks_or_requests(
    serve: Serve, script: ScriptFactory, scale: int
) -> None:
    """Disconnect 50 clients at random moments; 200 in the long run."""
    talk = {
        "when": "leave",
        "prefill_ms": 3,
        "pieces": ["bla ", {"text": "bla", "delay_ms": 1}],
        "repeat": 200,
    }
    server = await serve(script(talk, ECHO, slots=3))
    rng = random.Random(scale)

    async def disconnect() -> None:
        with await RawConnection.connect(server.port) as wire:
            stream = rng.random() < 0.7
            data = b'{"prompt": "leave", "stream": %s}' % (b"true" if stream else b"false")
            # The server closes the connection, or a client that reads on would wait without end.
            head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            raw = head + b"content-length: %d\r\n\r\n" % len(data) + data
            kind = rng.random()
            if kind < 0.2:
                await wire.send(raw[: rng.randrange(1, len(raw))])
                await asyncio.sleep(rng.random() * 0.01)
            elif kind < 0.6:
                await wire.send(raw)
                await asyncio.sleep(rng.random() * 0.03)
            else:
                await wire.send(raw)
                remaining_bytes = rng.randrange(1, 2000)
                while remaining_bytes > 0 and (data := await wire.read()):
                    remaining_bytes -= len(data)
            wire.close(reset=rng.random() < 0.3)

    def resources() -> tuple[set[str], Counter[str]]:
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        return list_open_files(), Counter(getattr(each, "__qualname__", "") for each in coroutines)

    async with server.client() as client:
        await client.post(ROUTE, json={"prompt": "warm"})
    await server.wait_until(lambda: not server.connections)
    await server.wait_until_idle()
    gc.collect()
    before = resources()
    count = 50 * (4 if scale > 1 else 1)
    for _ in range(count // 5):
        await asyncio.gather(*(disconnect() for _ in range(5)))
    await server.wait_until_idle()
    gc.collect()
    with contextlib.suppress(TimeoutError):
        await server.wait_until(lambda: resources() == before)
    assert resources() == before
    started, ended = server.events.of(RequestStarted), server.events.of(RequestEnded)
    assert sorted(e.request_id for e in started) == sorted(e.request_id for e in ended)
    assert any(event.aborted for event in ended)
    assert len(server.events.of(FirstToken)) > 0
    async with server.client() as client:
        for _ in range(3):
            answer = (await client.post(ROUTE, json={"prompt": "all is well"})).json()
            assert answer["choices"][0]["text"] == "all is well"
