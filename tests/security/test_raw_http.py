"""The attacker's client sends bytes unchanged and parses the responses."""

from __future__ import annotations

import pytest

from tests.integration.emulator.conftest import Serve
from tests.security.raw_http import exchange, raw_connection, request_bytes


async def test_exchange_returns_status_headers_and_body(serve: Serve) -> None:
    server = await serve()
    response = await exchange(server.port, "GET", "/health")
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.body.startswith(b"{")


async def test_response_reads_pipelined_answers_in_order(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(
            request_bytes("GET", "/health") + request_bytes("GET", "/no/such/route")
        )
        assert (await connection.response()).status == 200
        assert (await connection.response()).status == 404


async def test_closed_returns_what_the_server_sent_last(serve: Serve) -> None:
    server = await serve()
    async with raw_connection(server.port) as connection:
        await connection.send(b"NOT HTTP\r\n\r\n")
        assert b"400" in await connection.closed()
        with pytest.raises(ConnectionError):
            await connection.response(deadline_s=1)
