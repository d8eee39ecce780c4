"""OpenAI's streams on a real connection: timing of events, slow clients and disconnects."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from openai import AsyncOpenAI

from emulator.http.sse import COMMENT
from engine.hooks import RequestEnded
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.serving import RawConnection, Server, join_text, parse_chunks

TURNS: Any = [{"role": "user", "content": "talk"}]
# The routes of each family, with a valid body.
CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "talk"},
    "/v1/chat/completions": {"messages": TURNS},
    "/v3/completions": {"prompt": "talk", "model": "tiny"},
    "/v3/chat/completions": {"messages": TURNS, "model": "tiny"},
    "/completions": {"prompt": "talk"},
    "/chat/completions": {"messages": TURNS},
}
HANG = {"hang_s": 3600}
COMMENTS = {"stream_comments_after_s": 0.01}


def stream_body(route: str, **fields: Any) -> dict[str, Any]:
    return {**CALLS[route], "stream": True, **fields}


@pytest.mark.parametrize("route", CALLS)
async def test_first_event_is_sent_while_the_model_runs(
    serve: Serve, script: ScriptFactory, route: str
) -> None:  # R29
    server = await serve(script({"pieces": ["first", HANG]}), model_name="tiny")
    with await RawConnection.connect(server.port) as wire:
        await wire.post(route, stream_body(route))
        assert (await wire.read_head())[0] == 200
        assert b'"first"' in await wire.read_chunk()
        assert server.engine.running == 1
        assert server.events.of(RequestEnded) == []
    await server.wait_until_idle()


@pytest.mark.long_except("/v1/chat/completions", "/v3/completions")
@pytest.mark.parametrize("route", CALLS)
async def test_deltas_are_merged_while_the_client_lags(
    serve: Serve, script: ScriptFactory, route: str
) -> None:  # R29: fewer events than tokens, and the complete text.
    tokens = 400
    long_answer = {"pieces": ["bla " * 500], "repeat": tokens, "delay_ms": 1}
    server = await serve(script(long_answer), model_name="tiny")
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(route, stream_body(route))
        status, _ = await wire.read_head()
        assert status == 200
        (connection,) = server.connections
        # By default, the kernel would buffer megabytes.
        sock = connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        # The model finishes before the client reads on.
        await server.events.wait(RequestEnded)
        body = b""
        while chunk := await wire.read_chunk():
            body += chunk
    chunks = parse_chunks(body)
    assert join_text(chunks) == "bla " * 500 * tokens
    assert len(chunks) < tokens / 2


@pytest.mark.parametrize("route", CALLS)
async def test_silence_of_the_model_is_filled_with_comments(
    serve: Serve, script: ScriptFactory, route: str
) -> None:  # R19
    server = await serve(script({"pieces": ["first", HANG]}), model_name="tiny", **COMMENTS)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(route, stream_body(route))
        await wire.read_head()
        while b'"first"' not in (chunk := await wire.read_chunk()):
            # The scripted engine may take longer than the short time of this test.
            assert chunk == COMMENT
        for _ in range(3):
            assert await wire.read_chunk() == COMMENT
    await server.wait_until_idle()


async def test_sdk_ignores_comments(serve: Serve, script: ScriptFactory) -> None:  # R19, R32
    pieces = ["one ", {"text": "two ", "delay_ms": 60}, {"text": "three", "delay_ms": 60}]
    server = await serve(script({"pieces": pieces}), model_name="tiny", **COMMENTS)
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        options: dict[str, Any] = {"model": "tiny", "stream": True}
        completion = await client.completions.create(prompt="talk", **options)
        assert "".join([chunk.choices[0].text async for chunk in completion]) == "one two three"
        chat: Any = await client.chat.completions.create(messages=TURNS, **options)
        deltas = [chunk.choices[0].delta.content or "" async for chunk in chat]
        assert "".join(deltas) == "one two three"


# -- clients that do not read ---------------------------------------------------------------------


async def start_flood(serve: Serve, script: ScriptFactory, **settings: Any) -> Server:
    flood = {"when": "talk", "pieces": ["x" * 50_000], "repeat": -1, "delay_ms": 1}
    path = script(flood, {}, slots=2, context_length=10**9)
    return await serve(path, model_name="tiny", **settings)


async def assert_answers(server: Server) -> None:
    """Check that all slots are free, and that the next answer has no text of the last one."""
    await server.wait_until_idle()
    async with server.client() as client:
        response = await client.post("/v1/completions", json={"prompt": "all is well"})
    assert response.json()["choices"][0]["text"] == "all is well"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("reset", [False, True])
async def test_disconnect_while_the_server_waits_to_send(
    serve: Serve, script: ScriptFactory, route: str, n: int, reset: bool
) -> None:  # R31
    server = await start_flood(serve, script)
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(route, stream_body(route, n=n))
        await wire.read_head()
        (connection,) = server.connections
        await server.wait_until(lambda: connection.flow.write_paused)
        assert server.events.of(RequestEnded) == []
        wire.close(reset=reset)
        ended = await server.events.wait(RequestEnded, n)
    assert all(event.aborted for event in ended)
    await assert_answers(server)


@pytest.mark.long_except("/v1/chat/completions-2")
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_client_that_never_reads_is_cut_off_and_its_slots_are_free(
    serve: Serve, script: ScriptFactory, route: str, n: int
) -> None:  # R31: the client stops reading without closing its connection.
    server = await start_flood(serve, script, read_timeout_s=0.3)
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(route, stream_body(route, n=n))
        ended = await server.events.wait(RequestEnded, n)
        assert all(event.aborted for event in ended)
        await server.wait_until(lambda: not server.connections)
        await assert_answers(server)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_stream_has_comments_while_the_model_loads(
    serve: Serve, gate: Gate, route: str
) -> None:
    server = await serve(gate.path, **COMMENTS)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
    if route == "/v1/responses":
        body = {"input": "hi", "stream": True}
    with await RawConnection.connect(server.port) as wire:
        await wire.post(route, body)
        await wire.read_until(b": still here")
        await gate.open(answers=[{"pieces": ["loaded"]}])
        await wire.read_until(b"loaded")
