"""Malformed requests over raw sockets: an answer or a closed connection, never a fault."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable

import pytest

from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.security.malformed import malformed_requests
from tests.security.raw_http import RawResponse, exchange, raw_connection, request_bytes

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


async def statuses(port: int, case: bytes) -> list[int]:
    """Return the statuses of all responses to one case."""
    async with raw_connection(port) as connection:
        try:
            await connection.send(case)
        except ConnectionError:
            return []
        return [int(status) for status in _STATUS.findall(await connection.closed())]


async def check_cases(port: int, cases: Iterable[bytes], clients: int) -> int:
    """Send all cases; check that no status is 5xx, except 505 for another version of HTTP."""
    remaining = iter(cases)
    responses = 0

    async def client() -> None:
        nonlocal responses
        for case in remaining:
            received = await statuses(port, case)
            responses += len(received)
            assert all(status < 500 or status == 505 for status in received), (
                received,
                case,
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return responses


async def test_malformed_requests_cause_no_server_error_and_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture, scale: int
) -> None:
    server = await serve(head_timeout_s=0.3, body_timeout_s=0.3, poll_hold_s=0.01)
    with caplog.at_level(logging.INFO):
        assert await check_cases(server.port, malformed_requests(7, 500 * scale), 32) > 200
    assert "Traceback" not in caplog.text
    assert not [each for each in caplog.records if each.exc_info]
    assert (await exchange(server.port, "GET", "/health")).status == 200


def check_error(response: RawResponse, status: int, words: str) -> None:
    """Check that a response is a JSON error with these words, and ends its connection."""
    assert response.status == status, response
    assert response.headers["connection"] == "close"
    error = json.loads(response.body)["error"]
    assert words in error["message"]
    assert error["code"] == status


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        (b"*", 400, "must be a path"),
        (b"x:80", 400, "not valid HTTP"),
        (b"?a", 400, "not valid HTTP"),
        (b"/%", 400, "hexadecimal"),
        (b"/%zz", 400, "hexadecimal"),
        (b"/health?a=%4", 400, "hexadecimal"),
        (b"/\x01", 400, "not valid HTTP"),
        (b"/\xff", 400, "not valid HTTP"),
        (b"/#fragment", 400, "fragment"),
        (b"/" + b"a" * 20_000, 414, "longer than"),
        (b"/" + b"a" * 100_000, 414, "longer than"),
        (b"ftp://x/", 400, "must be a path"),
        (b"http://user@x/health", 400, "malformed"),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("method", [b"GET", b"OPTIONS"])
async def test_malformed_target_is_refused_with_a_json_error(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    method: bytes,
    target: bytes,
    status: int,
    words: str,
) -> None:
    server = await serve()
    with caplog.at_level(logging.WARNING):
        async with raw_connection(server.port) as connection:
            await connection.send(method + b" " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            check_error(await connection.response(), status, words)
    assert caplog.text == ""


async def test_connect_is_refused_with_a_json_error(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n")
        check_error(await connection.response(), 400, "must be a path")


@pytest.mark.parametrize("target", ["//", "//health", "/%00", "/%ff", "/v2//run"])
async def test_unusual_but_valid_target_is_an_unknown_path(serve: Serve, target: str) -> None:
    server = await serve()
    response = await exchange(server.port, "GET", target)
    assert response.status in (404, 405)
    assert read_reason(json.loads(response.body))


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1/v1/models", 200),
        ("HTTP://localhost:80/v1/models", 200),
        ("http://attacker.example/v1/models", 403),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "attacker.example"])
async def test_host_of_an_absolute_target_is_the_one_that_is_checked(
    serve: Serve, target: str, status: int, host: str
) -> None:
    server = await serve()
    response = await exchange(server.port, "GET", target, [("Host", host)])
    assert response.status == status


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        (b"GET /health HTTP/1.1\r\n", 400, "no Host"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n", 400, "more than one Host"),
        (b"GET /health HTTP/1.0\r\nHost: x\r\nhost: y\r\n", 400, "more than one Host"),
        (b"GET /health HTTP/1.1\r\nHost: a b\r\n", 400, "host name"),
        (b"GET /health HTTP/1.1\r\nHost: u@x\r\n", 400, "host name"),
        (b"GET /health HTTP/2.0\r\nHost: x\r\n", 505, "HTTP/2.0"),
        (b"GET /health HTTP/1.1\r\nHost : x\r\n", 400, "not valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n folded: y\r\n", 400, "not valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost: x\nA: b\r\n", 400, "not valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost: x\rA: b\r\n", 400, "not valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n", 400, "not valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 300, 431, "headers"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\na: " + b"b" * 66_000 + b"\r\n", 431, "larger"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a" * 66_000 + b": b\r\n", 431, "larger"),
    ],
    ids=lambda value: repr(value)[-30:],
)
async def test_malformed_head_is_refused_with_a_json_error(
    serve: Serve, head: bytes, status: int, words: str
) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(head + b"\r\n")
        check_error(await connection.response(), status, words)


async def test_http_1_0_needs_no_host(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await connection.response()).status == 200
        assert await connection.closed() == b""


SMUGGLED = request_bytes("POST", "/purge-queue")


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        b"Content-Length: 6\r\nContent-Length: 6\r\n",
        b"Content-Length: 6\r\nContent-Length: 0\r\n",
        b"Content-Length: 6, 0\r\n",
        b"Content-Length: +6\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"X: y\r\n\tTransfer-Encoding: chunked\r\n",
    ],
    ids=repr,
)
async def test_request_with_an_ambiguous_end_is_refused_and_what_follows_is_not_run(
    serve: Serve, framing: bytes
) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(
            b"POST /run HTTP/1.1\r\n" + HOST + framing + b"\r\n0\r\n\r\nX" + SMUGGLED
        )
        assert (await connection.response("POST")).status == 400
        assert await connection.closed() == b""


@pytest.mark.parametrize(
    "body",
    [
        b"5\n{...}\n0\n\n",
        b"0x5\r\n12345\r\n0\r\n\r\n",
        b"-5\r\n12345\r\n0\r\n\r\n",
        b"\r\n",
        b"ffffffffffffffffff\r\n",
        b"5\r\n123456\r\n0\r\n\r\n",
        b"5;" + b"x" * 2_000,
        b"5;\x01\r\n12345\r\n0\r\n\r\n",
        b"0\r\nno-colon\r\n\r\n",
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_malformed_chunk_is_refused_and_what_follows_is_not_run(
    serve: Serve, body: bytes
) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        head = b"POST /run HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        await connection.send(head + body + SMUGGLED)
        response = await connection.response("POST")
        check_error(response, 400, " ")
        assert await connection.closed() == b""


async def test_offer_of_another_protocol_is_ignored_and_the_body_is_taken(serve: Serve) -> None:
    server = await serve()
    headers = [
        ("Host", "127.0.0.1"),
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
    ]
    async with raw_connection(server.port) as connection:
        await connection.send(
            request_bytes("POST", "/v1/completions", headers, b'{"prompt": "hello"}')
            + request_bytes("GET", "/health")
        )
        assert b'"text":"hello"' in (await connection.response("POST")).body
        assert (await connection.response()).status == 200


async def test_malformed_body_that_waits_for_100_continue_gets_one_response(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    headers = [
        ("Host", "127.0.0.1"),
        ("Expect", "100-continue"),
        ("Transfer-Encoding", "chunked"),
    ]
    request = request_bytes("POST", "/run", headers) + b"zz\r\n"
    with caplog.at_level(logging.WARNING):
        assert await statuses(server.port, request) == [400]
        assert (await exchange(server.port, "GET", "/health")).status == 200
    assert "Traceback" not in caplog.text
    assert not [each for each in caplog.records if each.exc_info]
