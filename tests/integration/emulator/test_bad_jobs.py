"""Bad input to the client routes gets the documented error, never a 500, and starts no job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from engine.hooks import RequestStarted
from tests.error_bodies import read_param, read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

INPUT: dict[str, Any] = {"prompt": "hello there"}
PREFIXES = ["", "/v2/default", "/v2/other"]
SENDING = ["run", "runsync"]
BY_ID = ["status", "status-sync", "stream", "cancel", "retry", "requests"]


@asynccontextmanager
async def check_nothing_starts(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client; afterwards, check that its requests created no job."""
    async with server.client() as client:
        yield client
        for endpoint in ("default", "other"):
            counts = (await client.get(f"/v2/{endpoint}/health")).json()["jobs"]
            assert set(counts.values()) == {0}
    assert server.events.of(RequestStarted) == []


def check_error(response: httpx2.Response, status: int) -> dict[str, Any]:
    """Check the status of an error response; return its `message` and `param`."""
    assert response.status_code == status
    assert "Traceback" not in response.text
    body = response.json()
    return {"message": read_reason(body), "param": read_param(body)}


MALFORMED = [
    b"",
    b"{",
    b"input",
    b'{"input": NaN}',
    b'{"input": "\xff"}',
    b'{"input": "\\ud800"}',
    b"[" * 10_000,
    b'{"input":' * 5_000 + b"1" + b"}" * 5_000,
    b"\x00\x01\x02",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("route", SENDING)
async def test_body_that_is_not_a_json_object_is_refused(
    serve: Serve, prefix: str, route: str
) -> None:
    async with check_nothing_starts(await serve()) as client:

        async def post(
            content: bytes, kind: str = "application/json", **headers: str
        ) -> httpx2.Response:
            return await client.post(
                f"{prefix}/{route}", content=content, headers={"content-type": kind, **headers}
            )

        for content in MALFORMED:
            assert check_error(await post(content), 400)["message"].startswith(
                "the body is not JSON: "
            )
        for content in (b"[]", b"null", b'"text"', b"1", b"true"):
            message = check_error(await post(content), 400)["message"]
            assert message == "the body must be a JSON object"
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            response = await post(b'{"input": {}}', kind, origin=str(client.base_url))
            message = check_error(response, 415)["message"]
            assert message == f"the content type must be application/json, got {kind}"


@pytest.mark.parametrize("route", SENDING)
async def test_wrong_field_is_400_naming_the_field(serve: Serve, route: str) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    no_url = "webhook must be an http or https URL, got "
    week = "a whole number of milliseconds from {} to 604800000, got {}"
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"input": None}, "input", "input must be given: the job's own parameters"),
        ({"input": deep}, "input", "input is nested too deeply"),
        ({"webhook": "localhost:80"}, "webhook", no_url + '"localhost:80"'),
        ({"webhook": 5}, "webhook", no_url + "5"),
        ({"webhook": "http://"}, "webhook", no_url + '"http://"'),
        ({"s3Config": "bucket"}, "s3Config", "s3Config must be an object, got a string"),
        ({"s3Config": deep}, "s3Config", "s3Config must be an object"),
        ({"s3Config": {"a": deep}}, "s3Config", "s3Config is nested too deeply"),
        ({"policy": 1}, "policy", "policy must be an object, got 1"),
        (
            {"policy": {"executionTimeout": 4_999}},
            "policy.executionTimeout",
            "policy.executionTimeout must be " + week.format(5_000, 4_999),
        ),
        (
            {"policy": {"ttl": 604_800_001}},
            "policy.ttl",
            "policy.ttl must be " + week.format(10_000, 604_800_001),
        ),
        ({"policy": {"ttl": 10**400}}, "policy.ttl", "policy.ttl must be a whole number"),
        ({"policy": {"ttl": deep}}, "policy.ttl", "policy.ttl must be a whole number"),
        (
            {"policy": {"lowPriority": "yes"}},
            "policy.lowPriority",
            'policy.lowPriority must be true or false, got "yes"',
        ),
    ]
    async with check_nothing_starts(await serve()) as client:
        for fields, param, message in cases:
            content = json.dumps({"input": INPUT} | fields).encode()
            for prefix in PREFIXES:
                response = await client.post(
                    f"{prefix}/{route}",
                    content=content,
                    headers={"content-type": "application/json"},
                )
                if read_param(response.json()) is None:
                    # A number that our JSON readers refuse.
                    assert check_error(response, 400)["message"].startswith("the body is not JSON")
                    continue
                error = check_error(response, 400)
                assert error["param"] == param
                assert error["message"].startswith(message)
                assert len(error["message"]) < 300


async def test_too_large_body_is_413(serve: Serve) -> None:
    server = await serve(max_run_mb=0.001, max_runsync_mb=0.002)
    async with server.client() as client:
        for size, statuses in ((900, (200, 200)), (1_500, (413, 200)), (2_500, (413, 413))):
            padding = "x" * (size - 40)
            for route, status, limit in zip(SENDING, statuses, ("0.001", "0.002"), strict=True):
                body = json.dumps({"input": INPUT, "x": padding}).encode()
                for content in (body, send_without_length(body)):
                    response = await client.post(
                        f"/{route}", content=content, headers={"content-type": "application/json"}
                    )
                    if status == 200:
                        assert response.status_code == 200
                    else:
                        error = check_error(response, 413)
                        assert error["message"] == f"the body is larger than {limit} MB"


async def send_without_length(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in parts, so that it is sent without a content length."""
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


UNKNOWN_IDS = [
    "nobody-u1",
    "x" * 5_000,
    "%00",
    "%E2%98%83",
    "%FF",
    "..%5C",
    "a%20b",
    "'%22;--",
    "%0A",
]


@pytest.mark.parametrize("route", BY_ID)
async def test_unknown_job_is_404(serve: Serve, route: str) -> None:
    async with check_nothing_starts(await serve()) as client:
        methods = ["POST"] if route in ("cancel", "retry") else ["GET", "POST"]
        for method in methods:
            for prefix, job_ids in zip(
                PREFIXES, (UNKNOWN_IDS, UNKNOWN_IDS[:1], UNKNOWN_IDS[:1]), strict=True
            ):
                for job_id in job_ids:
                    response = await client.request(method, f"{prefix}/{route}/{job_id}")
                    error = check_error(response, 404)
                    assert error["message"].startswith("there is no job ")
            assert "nobody-u1" in (await client.request(method, f"/{route}/nobody-u1")).text


@pytest.mark.parametrize("route", BY_ID)
async def test_job_of_another_endpoint_is_404(serve: Serve, route: str) -> None:
    server = await serve()
    async with server.client() as client:
        accepted = (await client.post("/v2/other/run", json={"input": INPUT})).json()
        for prefix in ("", "/v2/default", "/v2/third"):
            response = await client.post(f"{prefix}/{route}/{accepted['id']}")
            assert check_error(response, 404)["message"] == (f"there is no job {accepted['id']}")
        status = await client.get(f"/v2/other/status/{accepted['id']}")
        assert status.json() == {"id": accepted["id"], "status": "IN_QUEUE"}


async def test_wrong_method_is_405(serve: Serve) -> None:
    async with check_nothing_starts(await serve()) as client:
        for prefix in PREFIXES:
            for method, paths in {
                "GET": ["run", "runsync", "cancel/x", "retry/x", "purge-queue"],
                "DELETE": ["run", "status/x", "stream/x", "requests", "requests/x"],
                "PUT": ["status-sync/x", "purge-queue"],
            }.items():
                for path in paths:
                    response = await client.request(method, f"{prefix}/{path}")
                    assert response.status_code == 405
                    assert "allow" in response.headers
                    assert "Method Not Allowed" in read_reason(response.json())


async def test_unneeded_body_is_ignored(serve: Serve) -> None:
    server = await serve(max_run_mb=0.01, stream_hold_s=0.01)
    async with server.client() as client:
        job_id = (await client.post("/v2/other/run", json={"input": INPUT})).json()["id"]
        for path in ("status", "stream", "requests", "cancel"):
            for content in (b"{", b"x" * 200_000):
                response = await client.post(
                    f"/v2/other/{path}/{job_id}",
                    content=content,
                    headers={"content-type": "text/nonsense"},
                )
                assert response.status_code == 200
        for path in ("purge-queue", "reset", "health", "requests"):
            assert (await client.post(f"/v2/other/{path}", content=b"[")).status_code == 200
