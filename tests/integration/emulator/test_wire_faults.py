"""Faults of HTTP itself and of jobs, as raw bytes and as HTTP clients see them."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, Server

TEXT = "one zwölf three"
BODY = {"prompt": "hi", "stream": True}


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    path = script({"pieces": ["one ", "zwölf ", "three"]})
    return await serve(path, faults_per_request=True, model_name="tiny")


async def post(server: Server, fault: str, **body: Any) -> httpx2.Response:
    async with server.client(sends_anything=True) as client:
        headers = {"x-fault": fault}
        return await client.post("/v1/completions", json={"prompt": "hi", **body}, headers=headers)


async def read_raw(server: Server, fault: str, **body: Any) -> tuple[bytes, bytes]:
    """Return the head and the body of a response as bytes of the connection."""
    with await RawConnection.connect(server.port) as wire:
        await wire.post(
            "/v1/completions",
            {"prompt": "hi", **body},
            f"x-fault: {fault}\r\nconnection: close\r\n",
        )
        head, _, rest = (await wire.read_all()).partition(b"\r\n\r\n")
    return head, rest


def text_of(content: bytes) -> str:
    data = [line[6:] for line in content.decode().split("\n") if line.startswith("data: {")]
    return "".join(json.loads(each)["choices"][0]["text"] for each in data)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_body_without_a_length_ends_with_the_connection(
    server: Server, is_streamed: bool
) -> None:
    head, body = await read_raw(server, "until-close", stream=is_streamed)
    assert b"content-length" not in head
    assert b"transfer-encoding" not in head
    assert body.endswith(b"data: [DONE]\n\n") is is_streamed
    if not is_streamed:
        assert json.loads(body)["choices"][0]["text"] == TEXT
    response = await post(server, "until-close", stream=is_streamed)
    assert response.status_code == 200


@pytest.mark.parametrize("length", [100, 100_000])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_declared_length_is_not_that_of_the_body(
    server: Server, is_streamed: bool, length: int
) -> None:
    head, body = await read_raw(server, f"content-length={length}", stream=is_streamed)
    assert b"\r\ncontent-length: %d\r\n" % length in head + b"\r\n"
    assert 100 < len(body) < 100_000
    if length == 100_000:
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(server, f"content-length={length}", stream=is_streamed)
    else:
        assert len((await post(server, "content-length=100", stream=is_streamed)).content) == 100


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_body_is_compressed_if_the_client_accepts_that(
    server: Server, is_streamed: bool
) -> None:
    head, body = await read_raw(server, "gzip", stream=is_streamed)
    assert b"content-encoding" not in head
    response = await post(server, "gzip", stream=is_streamed)
    assert response.headers["content-encoding"] == "gzip"
    text = text_of(response.content) if is_streamed else response.json()["choices"][0]["text"]
    assert text == TEXT
    # Each event can be read as soon as it is there.
    _, body = await read_raw(server, "gzip; end-after=1; until-close", **BODY)
    assert body.startswith(b"data: ")
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(body)


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip;q=0", False), ("deflate, gzip; q=0.0", False), ("br;q=1, GZIP;q=0.5", True)],
)
async def test_body_is_not_compressed_if_gzip_has_no_weight(
    server: Server, accepted: str, is_compressed: bool
) -> None:
    async with server.client(sends_anything=True) as client:
        headers = {"x-fault": "gzip", "accept-encoding": accepted}
        response = await client.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
    assert ("content-encoding" in response.headers) is is_compressed


async def test_client_of_http_1_0_gets_no_early_hints(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.send(
            b"GET /v1/models HTTP/1.0\r\nhost: localhost\r\nx-fault: early-hints\r\n\r\n"
        )
        assert (await wire.read_all()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_early_hints_precede_the_response(server: Server) -> None:
    head, rest = await read_raw(server, "early-hints", **BODY)
    assert head.startswith(b"HTTP/1.1 103 Early Hints\r\n")
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    assert text_of((await post(server, "early-hints", stream=True)).content) == TEXT


async def test_content_type_is_missing(server: Server) -> None:
    assert "content-type" not in (await post(server, "no-content-type", stream=True)).headers


async def test_success_has_a_page_or_an_error_as_its_body(server: Server) -> None:
    page, error = [await post(server, fault, stream=True) for fault in ("html-200", "error-200")]
    assert (page.status_code, error.status_code) == (200, 200)
    assert page.headers["content-type"].startswith("text/html")
    assert error.json()["error"]["type"] == "overloaded_error"


async def test_byte_order_mark_precedes_json(server: Server) -> None:
    assert (await post(server, "json-bom")).content.startswith(b"\xef\xbb\xbf{")


@pytest.mark.parametrize("size", ["bad-chunk", "long-chunk"])
async def test_chunk_is_not_as_long_as_its_size_says(server: Server, size: str) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        await post(server, f"{size}=1", stream=True)


async def test_half_closed_connection_ends_when_the_client_closes(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post("/v1/completions", BODY, "x-fault: half-close-after=1\r\n")
        assert (await wire.read_all()).count(b"data: ") == 1
        assert len(server.connections) == 1
    await server.wait_until(lambda: not server.connections)


# -- jobs -----------------------------------------------------------------------------------------


async def read_job(server: Server, fault: str) -> dict[str, Any]:
    """Return the response for the stream of a completed job."""
    async with server.client(sends_anything=True) as client:
        job = await client.post("/v2/default/runsync", json={"input": BODY})
        route = f"/v2/default/stream/{job.json()['id']}"
        response = await client.get(route, headers={"x-fault": fault})
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("job-queued", "IN_QUEUE"),
        ("job-running", "IN_PROGRESS"),
        ("job-failed", "FAILED"),
        ("job-cancelled", "CANCELLED"),
        ("job-timed-out", "TIMED_OUT"),
    ],
)
async def test_state_of_a_job_is_another_one(server: Server, fault: str, status: str) -> None:
    job = await read_job(server, fault)
    assert (job["status"], job["stream"]) == (status, [])
    assert ("error" in job) is (status == "FAILED")


async def test_output_of_a_job_is_changed(server: Server) -> None:
    first = await read_job(server, "first-chunk")
    assert (first["status"], len(first["stream"])) == ("IN_PROGRESS", 1)
    unfinished = await read_job(server, "job-unfinished")
    assert (unfinished["status"], len(unfinished["stream"]) > 1) == ("IN_PROGRESS", True)
    assert (await read_job(server, "unknown-status"))["status"] == "RESTARTING"
    without = await read_job(server, "no-stream")
    assert (without["status"], "stream" in without) == ("COMPLETED", False)
