"""Attacks on the connection: requests sent ahead, trailers, masses of connections and bodies."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.hooks import RequestEnded, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.floods import HEALTH_LIMIT_S, MEMORY_LIMIT_BYTES, flood_pipeline, flood_trailers
from tests.security.raw_http import RawConnection, exchange, raw_connection, request_bytes

HEALTH = request_bytes("GET", "/health")
CHUNKED = b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n%s\r\n"
HANG = {"pieces": ["a", {"hang_s": 3600}]}


@pytest.mark.long_except("flood_trailers")
@pytest.mark.parametrize("flood", [flood_pipeline, flood_trailers])
async def test_flood_leaves_memory_bounded_and_health_answering(flood) -> None:  # type: ignore[no-untyped-def]
    # Each probe of `/health` is answered, or the flood raises.
    assert (await flood(0.8)).peak_bytes < MEMORY_LIMIT_BYTES


@pytest.mark.timing
@pytest.mark.parametrize("flood", [flood_pipeline, flood_trailers])
async def test_health_answers_quickly_during_a_flood(flood) -> None:  # type: ignore[no-untyped-def]
    # The median: single probes depend on how busy the machine is.
    assert (await flood(2.5)).median_s < HEALTH_LIMIT_S


# -- requests sent ahead ---------------------------------------------------------------------------


async def test_pipelined_requests_are_kept_up_to_a_bound_and_all_answered(serve: Serve) -> None:
    server = await serve()
    # More than the server keeps, and few requests: each is one more to answer.
    count, padding = 700, ("Padding", "x" * 4_000)
    request = request_bytes("GET", "/health", [("Host", "127.0.0.1"), padding])
    async with raw_connection(server.port) as connection:
        sending = asyncio.create_task(connection.send(request * count))
        for _ in range(count):
            assert (await connection.response()).status == 200
            (protocol,) = server.connections
            assert len(protocol._pipelined) < 600_000
            assert not protocol.pipeline
        await sending


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("ahead", [0, 100, 100_000])
async def test_client_that_leaves_is_noticed_whatever_it_has_sent_ahead(
    serve: Serve, script: ScriptFactory, ahead: int, reset: bool
) -> None:
    server = await serve(script(HANG))
    body = b'{"prompt": "x"}'
    connection: RawConnection
    async with raw_connection(server.port) as connection:
        await connection.send(request_bytes("POST", "/v1/completions", body=body))
        await server.events.wait(RequestStarted)
        await connection.send(b"GET /" * (ahead // 5))
        (protocol,) = server.connections
        await server.wait_until(lambda: len(protocol._pipelined) >= ahead)
        if reset:
            connection.writer.transport.abort()
        else:
            sock = connection.writer.get_extra_info("socket")
            sock.shutdown(socket.SHUT_WR)
        # Without the notice the run would never end.
        (ended,) = await server.events.wait(RequestEnded)
        assert ended.aborted


async def test_body_and_request_behind_a_closing_request_are_not_served(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        close = request_bytes("GET", "/health", [("Host", "127.0.0.1"), ("Connection", "close")])
        await connection.send(close + HEALTH)
        assert (await connection.response()).status == 200
        assert await connection.closed() == b""


async def test_empty_lines_between_requests_do_not_keep_a_connection_open(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(HEALTH)
        assert (await connection.response()).status == 200
        (protocol,) = server.connections
        timer = protocol.timeout_keep_alive_task
        await connection.send(b"\r\n\r\n")
        await connection.send(b"\r\n" + HEALTH[:3])
        await server.wait_until(lambda: protocol._head_bytes == 3)
        assert timer.cancelled()
        await connection.send(HEALTH[3:])
        assert (await connection.response()).status == 200


# -- trailers --------------------------------------------------------------------------------------


async def test_trailer_does_not_become_a_header(serve: Serve) -> None:
    server = await serve(api_keys="secret-key", max_body_mb=1)
    async with raw_connection(server.port) as connection:
        # Unauthorised workers are held for a second, in which the trailer arrives.
        await connection.send(CHUNKED % (b"v2/default/job-done/w/j", b""))
        await connection.send(b"2\r\n{}\r\n0\r\nAuthorization: Bearer secret-key\r\n\r\n")
        assert (await connection.response("POST")).status == 401
        await connection.send(CHUNKED % (b"run", b"Authorization: Bearer secret-key\r\n"))
        await connection.send(
            b"b\r\n" + b'{"input":1}' + b"\r\n0\r\nX-Request-Id: from-trailer\r\n\r\n"
        )
        response = await connection.response("POST")
        assert response.status == 200
        assert response.headers["x-request-id"] != "from-trailer"


@pytest.mark.parametrize(
    "trailers", [b"a: b\r\n" * 2_000, b"a: " + b"b" * 10_000, b"a" * 10_000], ids=repr
)
async def test_long_trailers_are_refused_before_they_end(serve: Serve, trailers: bytes) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(CHUNKED % (b"run", b"") + b"2\r\n{}\r\n0\r\n" + trailers)
        response = await connection.response("POST")
        assert response.status == 400
        assert b"the trailers are longer than" in response.body


async def test_long_chunk_extension_is_refused_before_it_ends(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(CHUNKED % (b"run", b"") + b"2;a=" + b"x" * 5_000)
        response = await connection.response("POST")
        assert response.status == 400
        assert b"size line of a chunk" in response.body


# -- many connections ------------------------------------------------------------------------------


async def test_connection_over_the_limit_gets_503_and_room_is_made_by_closing(serve: Serve) -> None:
    server = await serve(max_connections_per_address=5)
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(raw_connection(server.port))
        await server.wait_until(lambda: len(server.connections) == 5)
        response = await exchange(server.port, "GET", "/health")
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        assert "MAX_CONNECTIONS" in json.loads(response.body)["error"]["details"]["reason"]
    await server.wait_until(lambda: len(server.connections) <= 1)
    assert (await exchange(server.port, "GET", "/health")).status == 200


async def test_one_address_cannot_use_up_the_connections_of_others(serve: Serve) -> None:
    server = await serve(max_connections=20, max_connections_per_address=10)

    async def attacker() -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, local_addr=("127.0.0.2", 0)
        )
        return writer

    writers = [await attacker() for _ in range(30)]
    try:
        for _ in range(5):
            assert (await exchange(server.port, "GET", "/health")).status == 200
    finally:
        for writer in writers:
            writer.close()


async def test_health_check_of_this_machine_is_answered_when_all_connections_are_used(
    serve: Serve,
) -> None:
    server = await serve(max_connections=10)
    writers = []
    for number in range(30):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, local_addr=(f"127.0.0.{2 + number % 2}", 0)
        )
        writers.append(writer)
    try:
        assert (await exchange(server.port, "GET", "/health")).status == 200
    finally:
        for writer in writers:
            writer.close()


async def test_refused_connections_do_not_pile_up(serve: Serve) -> None:
    server = await serve(max_connections_per_address=1)
    async with raw_connection(server.port):
        await server.wait_until(lambda: len(server.connections) == 1)
        writers = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(300)]
        await server.wait_until(lambda: 0 < len(server.connections) <= 129)
        for writer in writers:
            writer.transport.abort()


# -- unfinished bodies -----------------------------------------------------------------------------


async def unfinished(connection: RawConnection, size: int, path: str = "/runsync") -> None:
    head = request_bytes("POST", path, [("Host", "127.0.0.1"), ("Content-Length", str(size + 1))])
    await connection.send(head + b'{"input":"' + b"x" * (size - 10))


async def test_unfinished_bodies_are_bounded_over_all_connections(serve: Serve) -> None:
    server = await serve(max_pending_body_mb=3)
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(raw_connection(server.port)) for _ in range(4)
        ]
        for connection in connections[:2]:
            await unfinished(connection, 1_400_000)
        budget = next(iter(server.connections)).shared.budget
        await server.wait_until(lambda: budget.used_bytes > 2_600_000)
        await unfinished(connections[2], 1_400_000)
        refused = await connections[2].response("POST")
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert b"MAX_PENDING_BODY_MB" in refused.body
        # A request of ordinary size is served meanwhile.
        ordinary = json.dumps({"prompt": "words, " * 100}).encode()
        answer = await exchange(server.port, "POST", "/v1/completions", body=ordinary)
        assert answer.status == 200
        assert budget.used_bytes <= 3_000_000
    await server.wait_until(lambda: budget.used_bytes == 0)


@pytest.mark.parametrize("path", ["/run", "/v1/completions", "/v1/files"])
async def test_body_without_a_key_is_neither_awaited_nor_kept(serve: Serve, path: str) -> None:
    server = await serve(api_keys="secret-key", max_pending_body_mb=0.5)
    async with raw_connection(server.port) as connection:
        await connection.send(
            request_bytes("POST", path, [("Host", "127.0.0.1"), ("Content-Length", "9000000")])
        )
        assert (await connection.response("POST")).status == 401
        # The rest is dropped as it comes, and the connection can be used again.
        await connection.send(b"x" * 9_000_000 + HEALTH)
        assert (await connection.response()).status == 200


async def test_parsed_body_makes_room_while_its_request_runs(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(HANG))
    async with raw_connection(server.port) as connection:
        body = json.dumps({"prompt": "x" * 500_000}).encode()
        await connection.send(request_bytes("POST", "/v1/completions", body=body))
        await server.wait_until(lambda: bool(server.connections))
        budget = next(iter(server.connections)).shared.budget
        await server.events.wait(RequestStarted)
        assert budget.used_bytes == 0


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_client_that_sends_a_body_and_leaves_makes_no_room_before_it_is_dropped(
    serve: Serve, framing: str
) -> None:
    server = await serve(max_pending_body_mb=3)
    body = b'{"input":"' + b"x" * 1_000_000 + b'"}'
    message = request_bytes("POST", "/run", body=body)
    if framing == "chunked":
        message = CHUNKED % (b"run", b"") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    protocols: Any = server.uvicorn.config.http_protocol_class
    budget = protocols.shared.budget
    # As if a body took long to parse.
    async with budget.parsing:
        for number in range(1, 4):
            async with raw_connection(server.port) as connection:
                await connection.send(message[:-10])
                await server.wait_until(lambda: budget.used_bytes > number * 930_000)  # noqa: B023
                (protocol,) = server.connections
                await connection.send(message[-10:])
                await server.wait_until(lambda: protocol._in_head)  # noqa: B023
                connection.writer.transport.abort()
                await server.wait_until(lambda: not server.connections)
        # The server still holds three bodies.
        assert budget.used_bytes > 2_700_000
        refused = await exchange(server.port, "POST", "/run", body=body)
        assert refused.status == 503
    await server.wait_until(lambda: budget.used_bytes == 0)


async def test_one_address_cannot_use_up_the_room_for_bodies_of_others(serve: Serve) -> None:
    server = await serve(max_pending_body_mb=4, max_pending_body_mb_per_address=2)
    large = json.dumps({"prompt": "x" * 1_000_000}).encode()
    async with AsyncExitStack() as stack:
        for _ in range(5):
            attacker = await stack.enter_async_context(raw_connection(server.port, "127.0.0.2"))
            await unfinished(attacker, 900_000)
        budget = next(iter(server.connections)).shared.budget
        await server.wait_until(lambda: budget.used_bytes > 1_600_000)
        answer = await exchange(server.port, "POST", "/v1/completions", body=large)
        assert answer.status == 200
        assert budget.used_bytes <= 2_000_000


async def test_rejected_bodies_are_not_kept_while_their_connections_stay_open(serve: Serve) -> None:
    server = await serve(api_keys="secret-key")
    async with AsyncExitStack() as stack:
        for _ in range(20):
            connection = await stack.enter_async_context(raw_connection(server.port))
            await unfinished(connection, 400_000)
            assert (await connection.response("POST")).status == 401
        held = sum(len(each.cycle.body) for each in server.connections)
        assert held == 0


async def test_malformed_rest_of_a_rejected_body_gets_no_second_response(serve: Serve) -> None:
    server = await serve(api_keys="secret-key")
    async with raw_connection(server.port) as connection:
        await connection.send(CHUNKED % (b"run", b"") + b"5\r\nab")
        assert (await connection.response("POST")).status == 401
        await connection.send(b"cdefghij")
        # The client would take it for the answer to its next request.
        assert await connection.closed() == b""


# -- idle connections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"GET /health", b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=repr
)
async def test_connection_that_sends_no_request_is_closed_in_time(
    serve: Serve, sent: bytes
) -> None:
    server = await serve(head_timeout_s=0.3)
    async with raw_connection(server.port) as connection:
        await connection.send(sent)
        assert await connection.closed() == b""
    await server.wait_until(lambda: not server.connections)


async def test_connection_that_is_idle_after_a_response_is_closed_in_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.server.server._KEEP_ALIVE_S", 0.3)
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(HEALTH)
        assert (await connection.response()).status == 200
        await connection.send(b"\r\n\r\n")
        assert await connection.closed() == b""


async def test_body_that_never_ends_is_closed_in_time_and_its_room_freed(serve: Serve) -> None:
    server = await serve(body_timeout_s=0.5)
    async with raw_connection(server.port) as connection:
        await unfinished(connection, 500_000)
        await server.wait_until(lambda: bool(server.connections))
        budget = next(iter(server.connections)).shared.budget
        await server.wait_until(lambda: budget.used_bytes > 0)
        assert await connection.closed() == b""
    await server.wait_until(lambda: budget.used_bytes == 0)
