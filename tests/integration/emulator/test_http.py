"""Less common parts of HTTP that some clients and proxies use."""

from __future__ import annotations

import gc
import logging
import socket
import weakref

import pytest

from engine.hooks import RequestEnded, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import (
    RawConnection,
    build_request_head,
    join_text,
    parse_chunks,
)

ROUTE = "/v1/completions"
BODY = b'{"prompt": "hello"}'
LENGTH = f"content-length: {len(BODY)}\r\n"


async def test_head_of_health_has_no_body(serve: Serve) -> None:
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("HEAD", "/health"))
        status, headers = await wire.read_head()
        assert status == 200
        assert int(headers["content-length"]) > 0
        # The next response follows directly: no body was sent.
        await wire.send(build_request_head("GET", "/health"))
        assert (await wire.read_response())[0] == 200


async def test_client_that_waits_for_100_continue_gets_it(serve: Serve) -> None:
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", ROUTE, LENGTH + "expect: 100-continue\r\n"))
        assert (await wire.read_head())[0] == 100
        await wire.send(BODY)
        assert (await wire.read_response())[0] == 200


async def test_100_continue_with_a_too_large_body_is_413(serve: Serve) -> None:
    server = await serve(max_body_mb=1)
    with await RawConnection.connect(server.port) as wire:
        await wire.send(
            build_request_head("POST", ROUTE, "content-length: 2000000\r\nexpect: 100-continue\r\n")
        )
        assert (await wire.read_response())[0] == 413


async def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    server = await serve()
    stream = b'{"prompt": "second one", "stream": true}'
    with await RawConnection.connect(server.port) as wire:
        await wire.send(
            build_request_head("POST", ROUTE, LENGTH)
            + BODY
            + build_request_head("POST", ROUTE, f"content-length: {len(stream)}\r\n")
            + stream
            + build_request_head("GET", "/health")
        )
        status, _, body = await wire.read_response()
        assert (status, b'"text":"hello"' in body) == (200, True)
        status, _, body = await wire.read_response()
        assert (status, join_text(parse_chunks(body))) == (200, "second one")
        assert (await wire.read_response())[0] == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_connection_is_closed_after_the_response_when_the_client_requests_it(
    serve: Serve, version: str
) -> None:
    server = await serve()
    close = "connection: close\r\n" if version == "1.1" else ""
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", ROUTE, LENGTH + close, version) + BODY)
        status, headers, body = await wire.read_response()
        assert (status, headers["connection"]) == (200, "close")
        assert b'"text":"hello"' in body
        assert await wire.read_all() == b""


async def test_body_in_tiny_chunks(serve: Serve) -> None:
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", ROUTE, "transfer-encoding: chunked\r\n"))
        for index in range(len(BODY)):
            await wire.send(b"1\r\n" + BODY[index : index + 1] + b"\r\n")
        await wire.send(b"0\r\n\r\n")
        status, _, body = await wire.read_response()
        assert (status, b'"text":"hello"' in body) == (200, True)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /run HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /run HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /run HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=lambda garbage: repr(garbage[:20]),
)
async def test_invalid_http_is_400_and_the_server_stays_up(serve: Serve, garbage: bytes) -> None:
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        await wire.send(garbage)
        assert (await wire.read_all()).startswith(b"HTTP/1.1 400 ")
    async with server.client() as client:
        assert (await client.get("/health")).status_code == 200


async def test_disconnect_during_the_body_logs_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    with caplog.at_level(logging.WARNING):
        for path in (ROUTE, "/run"):
            with await RawConnection.connect(server.port) as wire:
                await wire.send(build_request_head("POST", path, LENGTH) + BODY[:5])
                await server.wait_until(lambda: bool(server.tasks))
            await server.wait_until_idle()
    assert caplog.text == ""


async def test_half_closed_connection_aborts_the_request(
    serve: Serve, script: ScriptFactory
) -> None:
    # Uvicorn closes a half-closed connection, so the answer could not be sent.
    server = await serve(script({"pieces": ["a", {"hang_s": 3600}]}))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "x"})
        await server.events.wait(RequestStarted)
        wire.sock.shutdown(socket.SHUT_WR)
        (ended,) = await server.events.wait(RequestEnded)
        assert ended.aborted


async def test_trailing_slash_of_a_route_is_ignored(serve: Serve) -> None:
    server = await serve(model_name="little", api_keys="secret-key-of-a-test")
    user = [{"role": "user", "content": "x"}]
    key = {"Authorization": "Bearer secret-key-of-a-test"}
    async with server.client(follow_redirects=False) as client:
        for path, body in (
            (ROUTE, {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": user}),
            ("/v1/messages", {"messages": user, "max_tokens": 5}),
            ("/v1/embeddings", {"input": "x"}),
            ("/api/chat", {"messages": user}),
            ("/tokenize", {"prompt": "x"}),
            ("/runsync", {"input": {"prompt": "x"}}),
            ("/v2/default/openai/v1/completions", {"prompt": "x"}),
        ):
            assert (await client.post(f"{path}/", json=body)).status_code == 401, path
            answer = await client.post(f"{path}/", json=body, headers=key)
            assert answer.status_code == 200, (path, answer.status_code)
        models = await client.get("/v1/models/", headers=key)
        assert [each["id"] for each in models.json()["data"]] == ["little"]
        model = await client.get("/v1/models/little/", headers=key)
        assert model.json()["id"] == "little"
        assert (await client.get(f"{ROUTE}/", headers=key)).status_code == 405
        assert (await client.get("/v1/nothing/", headers=key)).status_code == 404


@pytest.mark.parametrize("reset", [False, True])
async def test_closed_connection_is_released_from_memory(serve: Serve, reset: bool) -> None:
    # The keep-alive timer used to hold a reset connection in memory, including its last body.
    server = await serve()
    gc.disable()
    try:
        with await RawConnection.connect(server.port) as wire:
            await wire.send(build_request_head("POST", ROUTE, LENGTH) + BODY)
            assert (await wire.read_response())[0] == 200
            connection = weakref.ref(next(iter(server.connections)))
            wire.close(reset=reset)
        await server.wait_until(lambda: connection() is None)
    finally:
        gc.enable()
