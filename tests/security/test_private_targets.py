"""Jobs that make the server send requests into its own network; the responses must not leak.

The servers listen on all addresses, and refuse private targets then by default. The test's own
resolver stands in for a name server of the attacker.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.security.internal_server import InternalServer, internal_server
from tests.unit.emulator.receiver import receiving
from tests.waiting import wait_until

INPUT = {"prompt": "hello there"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - what the setting is about
SECRET = "the-secret-of-an-internal-server"
PRIVATE_HOSTS = [
    "127.0.0.1",
    "localhost",
    "LOCALHOST.",
    "api.localhost",
    "10.0.0.5",
    "172.16.3.4",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",  # noqa: S104 - this machine, as a target
    "224.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "017700000001",
    "0",
    "127\u30020\u30020\u30021",
    "[::1]",
    "[::]",
    "[fe80::1]",
    "[fd12:3456::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::7f00:1]",
    "[64:ff9b::10.0.0.1]",
    "[2002:7f00:1::]",
]
CONFIG = {"accessId": "AKIDEXAMPLE", "accessSecret": "wJalrXUtnFEMI", "bucketName": "bucket"}


def bucket_at(url: str) -> dict[str, str]:
    return CONFIG | {"endpointUrl": url}


async def ended(client: httpx2.AsyncClient, **job: Any) -> dict[str, Any]:
    """Run a job to its end."""
    ended_job: dict[str, Any] = (await client.post("/runsync", json={"input": INPUT} | job)).json()
    return ended_job


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that has a name resolve to addresses, one after the other."""
    real = socket.getaddrinfo

    def begin(name: str, *answers: str) -> list[str]:
        lookups: list[str] = []

        def lookup(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
            if host not in (name, name.encode()):
                return real(host, port, *arguments, **options)
            lookups.append(name)
            return real(answers[min(len(lookups), len(answers)) - 1], port, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        return lookups

    return begin


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_private_webhook_is_refused_when_the_job_is_submitted(
    serve: Serve, scheme: str
) -> None:
    server = await serve(host=EVERYWHERE)
    async with server.client() as client:
        for host in PRIVATE_HOSTS:
            body = {"input": INPUT, "webhook": f"{scheme}://{host}:9/x"}
            answer = await client.post("/v2/other/run", json=body)
            assert answer.status_code == 400, host
            message = read_reason(answer.json())
            assert message.startswith("webhook: "), host
            assert "PRIVATE_TARGETS" in message


async def test_private_bucket_is_refused_when_the_job_is_submitted(serve: Serve) -> None:
    server = await serve(host=EVERYWHERE)
    async with server.client() as client:
        for host in PRIVATE_HOSTS:
            body = {"input": INPUT, "s3Config": bucket_at(f"http://{host}:9")}
            answer = await client.post("/v2/other/run", json=body)
            assert answer.status_code == 400, host
            assert read_reason(answer.json()).startswith("s3Config.endpointUrl: "), host


@pytest.mark.parametrize("scheme", ["file", "gopher", "ftp", "unix", "dict"])
async def test_webhook_of_another_scheme_is_refused(serve: Serve, scheme: str) -> None:
    server = await serve()
    async with server.client() as client:
        body = {"input": INPUT, "webhook": f"{scheme}://localhost/etc/passwd"}
        assert (await client.post("/run", json=body)).status_code == 400


async def test_webhook_name_that_resolves_to_this_machine_is_not_connected_to(
    serve: Serve, resolve: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    resolve("innocent.example", "127.0.0.1")
    server = await serve(host=EVERYWHERE, webhook_tries=1)
    async with server.client() as client, receiving() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        with caplog.at_level(logging.ERROR, "emulator.runpod.webhooks"):
            await ended(client, webhook=f"http://innocent.example:{port}/told")
            await wait_until(lambda: "given up" in caplog.text or receiver.posts)
        assert receiver.posts == []
        assert "innocent.example is not a public address" in caplog.text


async def test_bucket_name_that_resolves_to_this_machine_is_not_connected_to(
    serve: Serve, resolve: Callable[..., list[str]]
) -> None:
    resolve("innocent.example", "127.0.0.1")
    server = await serve(host=EVERYWHERE)
    async with server.client() as client, internal_server(b"") as internal:
        config = bucket_at(f"http://innocent.example:{internal.port}")
        job = await ended(client, s3Config=config)
        assert job["status"] == "FAILED"
        assert "innocent.example is not a public address" in job["error"]
        assert internal.connections == 0


@asynccontextmanager
async def two_servers_on_one_port(
    body: bytes, host: str
) -> AsyncIterator[tuple[InternalServer, InternalServer]]:
    """A server at `host`, and one at 127.0.0.1 with the same port, which others may have taken."""
    for _ in range(20):
        async with AsyncExitStack() as servers:
            first = await servers.enter_async_context(internal_server(body, host=host))
            try:
                second = await servers.enter_async_context(internal_server(body, port=first.port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield first, second
            return
    raise AssertionError("every port is taken")


async def test_rebound_name_is_connected_to_at_the_address_that_was_checked(
    serve: Serve, resolve: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands in for a public address, as this test has no other machine.
    public = "127.0.0.2"
    monkeypatch.setattr(
        "handler.delivery.outbound_targets.is_public", lambda address: str(address) == public
    )
    lookups = resolve("rebound.example", public, "127.0.0.1")
    server = await serve(host=EVERYWHERE, webhook_tries=1)
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    async with (
        server.client() as client,
        two_servers_on_one_port(ok, public) as (checked, internal),
    ):
        await ended(client, webhook=f"http://rebound.example:{checked.port}/")
        await wait_until(lambda: checked.heads or internal.heads)
        assert (len(checked.heads), internal.connections, len(lookups)) == (1, 0, 1)
        assert f"host: rebound.example:{checked.port}".encode() in checked.heads[0].lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_developer_on_loopback_may_have_webhooks_there(serve: Serve, host: str) -> None:
    server = await serve(host=host)
    async with server.client() as client, receiving() as receiver:
        await ended(client, webhook=receiver.url)
        assert len(await receiver.got(1)) == 1


async def test_setting_allows_private_targets_on_other_addresses(serve: Serve) -> None:
    server = await serve(host=EVERYWHERE, private_targets="on")
    async with server.client() as client, receiving() as receiver:
        await ended(client, webhook=receiver.url)
        assert len(await receiver.got(1)) == 1


async def test_setting_refuses_private_targets_on_loopback(serve: Serve) -> None:
    server = await serve(private_targets="off")
    async with server.client() as client:
        body = {"input": INPUT, "webhook": "http://127.0.0.1:9/"}
        assert (await client.post("/run", json=body)).status_code == 400


# -- answers of internal servers -----------------------------------------------------------------

S3_ERROR = (
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/xml\r\nconnection: close\r\n\r\n"
    b"<?xml version='1.0'?><Error><Code>%b</Code><Message>%b</Message></Error>"
)


@pytest.mark.parametrize(
    "answer",
    [
        S3_ERROR % (b"AccessDenied", SECRET.encode()),
        S3_ERROR % (SECRET.encode(), b"x"),
        b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n<html>%b</html>" % SECRET.encode(),
        b"HTTP/1.1 200 %b\r\nconnection: close\r\n\r\n%b" % (SECRET.encode(), SECRET.encode()),
        b"HTTP/1.1 500 x\r\nx-secret: %b\r\nconnection: close\r\n\r\n{}" % SECRET.encode(),
        b"SSH-2.0-%b\r\n\r\n" % SECRET.encode(),
        b"HTTP/1.1 301 x\r\nlocation: http://127.0.0.1/%b\r\n\r\n" % SECRET.encode(),
    ],
)
async def test_response_of_a_server_named_as_bucket_is_not_disclosed(
    serve: Serve,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    server = await serve()
    async with server.client() as client, internal_server(answer) as internal:
        with caplog.at_level(logging.DEBUG, "emulator"):
            job = await ended(client, s3Config=bucket_at(f"http://127.0.0.1:{internal.port}"))
        assert internal.connections > 0
        assert SECRET not in json.dumps(job)
        assert SECRET not in caplog.text


@pytest.mark.parametrize("region", ["", "x-amz-bucket-region: eu-west-1\r\n"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_of_a_bucket_is_not_followed(
    serve: Serve, status: int, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    server = await serve()
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    async with server.client() as client, internal_server(ok) as internal:
        location = f"http://127.0.0.1:{internal.port}/secret"
        head = f"HTTP/1.1 {status} x\r\nlocation: {location}\r\n{region}connection: close\r\n\r\n"
        async with internal_server(head.encode()) as bucket:
            job = await ended(client, s3Config=bucket_at(f"http://127.0.0.1:{bucket.port}"))
            # The upload, and at most one question for the bucket's region.
            assert 0 < bucket.connections <= 2
        assert job["status"] == "FAILED"
        assert "could not be put into the bucket" in job["error"]
        assert internal.connections == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-%b\r\n\r\n" % SECRET.encode(),
        b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % SECRET.encode(),
        b"HTTP/1.1 500 %b\r\n\r\n%b" % (SECRET.encode(), SECRET.encode()),
    ],
)
async def test_answer_to_a_webhook_is_not_logged(
    serve: Serve, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(webhook_tries=1)
    async with server.client() as client, internal_server(answer) as internal:
        with caplog.at_level(logging.DEBUG, "emulator"):
            job = await ended(client, webhook=f"http://127.0.0.1:{internal.port}/")
            await wait_until(lambda: "given up" in caplog.text)
        details = (await client.get(f"/v2/default/requests/{job['id']}")).text
    assert internal.connections == 1
    assert SECRET not in caplog.text + details


async def test_endless_answer_of_a_bucket_is_not_read_into_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    server = await serve()
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/xml\r\n\r\n"
    endless = internal_server(head, endless_bytes=200_000_000)
    async with server.client() as client, endless as internal:
        job = await ended(client, s3Config=bucket_at(f"http://127.0.0.1:{internal.port}"))
        assert job["status"] == "FAILED"
        assert "the server's answer is longer than 32 MB" in job["error"]
        assert internal.sent_bytes < 60_000_000
