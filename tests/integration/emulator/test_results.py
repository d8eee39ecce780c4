"""Jobs whose results go to a bucket of a real S3 server, sent as RunPod's clients send them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from moto import mock_aws

from emulator.settings.emulator_settings import EmulatorSettings
from engine.hooks import RequestQueued
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import parse_chunks, run_server
from tests.ports import free_port
from tests.seaweed import KEY, READER, SECRET, Seaweed, seaweed

BUCKET = "results"
LONG = {"when": "long", "pieces": ["x" * 4_000] * 5}
SHORT = {"pieces": ["yes ", "sir"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as storage:
        storage.client().create_bucket(Bucket=BUCKET)
        yield storage


@pytest.fixture
def bucket_variables(server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set RunPod's bucket variables, and RESULT_MAX_MB."""
    monkeypatch.setenv("BUCKET_ENDPOINT_URL", server.url)
    monkeypatch.setenv("BUCKET_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("BUCKET_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("BUCKET_NAME", BUCKET)
    monkeypatch.setenv("RESULT_MAX_MB", "0.01")


def bucket_config(url: str, **changes: Any) -> dict[str, Any]:
    defaults = {"accessId": KEY, "accessSecret": SECRET, "bucketName": BUCKET, "endpointUrl": url}
    return defaults | changes


async def run(client: httpx2.AsyncClient, prompt: str = "x", **fields: Any) -> dict[str, Any]:
    """Send a job that streams and return its end as `/status` shows it."""
    body = {"input": {"prompt": prompt, "stream": True}, **fields}
    job_id = (await client.post("/run", json=body)).json()["id"]
    return await wait_for_end(client, job_id)


async def wait_for_end(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await client.get(f"/status-sync/{job_id}?wait=30000")).json()
    return job


async def fetch_json(url: str) -> Any:
    """Return the JSON document at a presigned address."""
    return json.loads(await asyncio.to_thread(lambda: httpx2.get(url).raise_for_status().content))


async def test_result_is_at_its_pointer_and_the_secret_is_never_shown(
    serve: Serve, script: ScriptFactory, server: Seaweed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (await serve(script(SHORT))).client() as client:
        s3_config = bucket_config(server.url, objectPath="of/mine")
        job = await run(client, s3Config=s3_config)
        assert job["status"] == "COMPLETED", job
        pointer = job["output"]["result"]
        assert (pointer["bucket"], pointer["key"]) == (BUCKET, f"of/mine/{job['id']}.json")
        stored = await fetch_json(pointer["url"])
        assert stored["choices"][0]["text"] == "yes sir"
        assert stored["usage"] == job["output"]["usage"]
        content = server.client().get_object(Bucket=BUCKET, Key=pointer["key"])["Body"].read()
        assert (len(content), json.loads(content)) == (pointer["bytes"], stored)

        responses = [
            (await client.get(path)).text
            for path in (f"/status/{job['id']}", "/requests", f"/requests/{job['id']}")
        ]
        sync = await client.post("/runsync", json={"input": {"prompt": "x"}, "s3Config": s3_config})
        assert sync.json()["output"]["result"]["key"] == f"of/mine/{sync.json()['id']}.json"
        for text in (*responses, sync.text, caplog.text):
            assert "s3Config" not in text
            assert SECRET not in text


async def test_bucket_is_kept_with_its_job_until_a_worker_has_it(
    serve: Serve, script: ScriptFactory, server: Seaweed, tmp_path: Path
) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    settings = EmulatorSettings(
        engine="scripted", engine_isolation="thread", local_worker=False, job_db=database
    )
    async with run_server(settings) as first, first.client() as client:
        body = {"input": {"prompt": "x"}, "s3Config": bucket_config(server.url)}
        job_id = (await client.post("/run", json=body)).json()["id"]
    async with (await serve(script(SHORT), job_db=database)).client() as client:
        job = await wait_for_end(client, job_id)
        assert job["output"]["result"]["key"] == f"{job_id}.json"


async def test_outputs_are_streamed_and_all_of_them_are_in_the_bucket(
    serve: Serve, script: ScriptFactory, server: Seaweed
) -> None:
    async with (await serve(script(SHORT), stream_mode="generator")).client() as client:
        job = await run(client, s3Config=bucket_config(server.url))
        (pointer,) = job["output"]
        stored = await fetch_json(pointer["result"]["url"])
        stream = (await client.get(f"/stream/{job['id']}")).json()["stream"]
        assert [each["output"] for each in stream] == [*stored, pointer]
        assert stored[-1]["choices"][0]["text"] == "yes sir"
        assert pointer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.usefixtures("bucket_variables")
async def test_large_results_go_to_the_bucket_of_the_variables(
    serve: Serve, script: ScriptFactory
) -> None:
    async with (await serve(script(LONG, SHORT))).client() as client:
        small, large = await run(client), await run(client, "long")
        assert small["output"]["choices"][0]["text"] == "yes sir"
        pointer = large["output"]["result"]
        assert (pointer["bucket"], pointer["key"]) == (BUCKET, f"{large['id']}.json")
        assert (await fetch_json(pointer["url"]))["choices"][0]["text"] == "x" * 20_000


@pytest.mark.usefixtures("bucket_variables")
async def test_openai_answer_is_inline_or_a_413_with_the_address_of_the_result(
    serve: Serve, script: ScriptFactory
) -> None:
    path = "/v2/default/openai/v1/completions"
    body = {"prompt": "long"}
    async with (await serve(script(LONG))).client() as client:
        response = await client.post(path, json=body)
        assert len(response.json()["choices"][0]["text"]) == 20_000
    async with (await serve(script(LONG), max_runsync_mb=0.11)).client() as client:
        response = await client.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (413, "result_too_large_error")
        url = error["message"].removeprefix("the answer was put into a bucket: ")
        assert len((await fetch_json(url))["choices"][0]["text"]) == 20_000
        # A streamed answer has already been sent when it exceeds the limit.
        streamed = await client.post(path, json=body | {"stream": True})
        text = "".join(chunk["choices"][0]["text"] for chunk in parse_chunks(streamed.content))
        assert len(text) == 20_000


# ---- failures ----


def check_failed(job: dict[str, Any], *messages: str) -> None:
    """Check that a job failed with these messages, without an output or secrets."""
    assert (job["status"], job.keys() & {"output"}) == ("FAILED", set())
    assert job["error"].startswith("the result could not be put into the bucket: s3://")
    assert "\n" not in job["error"]
    assert SECRET not in job["error"]
    for message in messages:
        assert message in job["error"]


async def test_wrong_credentials_fail_the_job(
    serve: Serve, script: ScriptFactory, server: Seaweed
) -> None:
    async with (await serve(script(SHORT))).client() as client:
        for changes, code in [
            ({"accessId": "nobody"}, "InvalidAccessKeyId"),
            ({"accessSecret": "another-one"}, "SignatureDoesNotMatch"),
            ({"accessId": READER}, "AccessDenied"),
        ]:
            job = await run(client, s3Config=bucket_config(server.url, **changes))
            check_failed(job, code)
            for secret in changes.values():
                assert secret not in job["error"]
        # The next job is not affected.
        assert "result" in (await run(client, s3Config=bucket_config(server.url)))["output"]


async def test_missing_bucket_fails_the_job(serve: Serve, script: ScriptFactory) -> None:
    """Use moto: SeaweedFS creates a missing bucket on demand."""
    async with (await serve(script(SHORT))).client() as client:
        with mock_aws():
            s3_config = bucket_config("https://s3.eu-central-1.amazonaws.com", bucketName="nobodys")
            check_failed(await run(client, s3Config=s3_config), "s3://nobodys/", "NoSuchBucket")


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_unreachable_server_fails_the_job(
    serve: Serve, script: ScriptFactory, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    async with (await serve(script(SHORT), stream_mode=mode)).client() as client:
        down = f"http://127.0.0.1:{free_port()}"
        check_failed(await run(client, s3Config=bucket_config(down)), "Could not connect", down)


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_bad_bucket_is_refused_before_its_job_is_run(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:
    server = await serve(script(SHORT), stream_mode=mode)
    async with server.client() as client:
        job = await run(client, s3Config={"accessId": KEY, "accessSecret": SECRET})
        assert job["status"] == "FAILED"
        assert job["error"] == "s3Config.bucketName must be a non-empty string, got none"
        assert (await client.get(f"/stream/{job['id']}")).json()["stream"] == []
    assert server.events.of(RequestQueued) == []
