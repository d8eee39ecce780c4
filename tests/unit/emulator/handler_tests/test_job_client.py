"""The client of the job routes: its requests, and one sentence for each failure."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from emulator.handler_tests.job_client import JobClient, JobRequestFailed, open_client
from tests.ports import free_port
from tests.unit.emulator.handler_tests.fake_api import FakeJobApi


def client_of(respond: Callable[[httpx2.Request], httpx2.Response]) -> JobClient:
    transport = httpx2.MockTransport(respond)
    return JobClient(httpx2.AsyncClient(base_url="http://server", transport=transport))


async def test_paths_name_the_endpoint_and_escape_ids() -> None:
    api = FakeJobApi()
    job_id = await api.client("my ep").submit({"x": 1}, 2)
    await api.client().get_status(job_id)
    with pytest.raises(JobRequestFailed):
        await api.client("e").get_request("../a b?c")
    assert await api.client("e").reset() == 3
    await api.client().cancel(job_id)
    assert api.paths == [
        "POST /v2/my%20ep/run",
        "GET /status/job-1",
        "GET /v2/e/requests/..%2Fa%20b%3Fc",
        "POST /v2/e/reset",
        "POST /cancel/job-1",
    ]
    assert api.bodies == [{"input": {"x": 1}, "policy": {"executionTimeout": 62_000}}]


async def test_wait_returns_the_ended_job() -> None:
    statuses = [{"status": "IN_QUEUE"}, {"status": "IN_PROGRESS"}, {"status": "FAILED"}]
    api = FakeJobApi(lambda job_input: statuses)
    job_id = await api.client().submit({}, 1)
    job = await api.client().wait(job_id, 60)
    assert job == {"id": job_id, "status": "FAILED"}


async def test_wait_returns_none_when_the_time_has_passed() -> None:
    api = FakeJobApi(lambda job_input: [{"status": "IN_PROGRESS"}])
    job_id = await api.client().submit({}, 1)
    assert await api.client().wait(job_id, 0.001) is None


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (
            httpx2.Response(401, json={"error": {"message": "the key is missing"}}),
            "was refused with status 401: the key is missing",
        ),
        (httpx2.Response(404, json={"error": "not here"}), "status 404: not here"),
        (httpx2.Response(400, json={"detail": 1}), 'status 400: {"detail": 1}'),
        (httpx2.Response(502, text="<html>" + "x" * 999), "status 502: <html>xxx"),
        (httpx2.Response(200, json=[1]), "was answered with something else than an object"),
        (httpx2.Response(200, text="hello"), "was answered with something else than an object"),
    ],
)
async def test_refused_request_is_one_sentence(response: httpx2.Response, reason: str) -> None:
    with pytest.raises(JobRequestFailed) as caught:
        await client_of(lambda request: response).get_status("a")
    assert str(caught.value).startswith("GET /status/a ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


async def test_server_that_does_not_listen_is_one_sentence() -> None:
    port = free_port()
    async with open_client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(
            JobRequestFailed, match=f"the server http://127.0.0.1:{port}.* does not"
        ):
            await client.reset()


@pytest.mark.parametrize(
    "server", ["127.0.0.1:8000", "ftp://x", "http://", "http://a:b", "http://[", ""]
)
async def test_address_that_is_no_url_is_refused(server: str) -> None:
    with pytest.raises(JobRequestFailed, match="--server must be an http or https URL"):
        async with open_client(server):
            pass


async def test_key_that_http_cannot_carry_is_not_in_the_message() -> None:
    with pytest.raises(JobRequestFailed) as caught:
        async with open_client("http://127.0.0.1:9", api_key="geheim-ä") as client:
            await client.reset()
    assert "geheim" not in str(caught.value)
