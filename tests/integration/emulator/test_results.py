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
    with seaweed(tmp_path_factory.mktemp("seaweed")) as found:
        found.client().create_bucket(Bucket=BUCKET)
        yield found


@pytest.fixture
def variables(server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """RunPod's own, and ours."""
    monkeypatch.setenv("BUCKET_ENDPOINT_URL", server.url)
    monkeypatch.setenv("BUCKET_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("BUCKET_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("BUCKET_NAME", BUCKET)
    monkeypatch.setenv("RESULT_MAX_MB", "0.01")


def config(url: str, **changes: Any) -> dict[str, Any]:
    given = {"accessId": KEY, "accessSecret": SECRET, "bucketName": BUCKET, "endpointUrl": url}
    return given | changes


async def run(client: httpx2.AsyncClient, prompt: str = "x", **fields: Any) -> dict[str, Any]:
    """Send a job that streams and return its end as `/status` shows it."""
    body = {"input": {"prompt": prompt, "stream": True}, **fields}
    job_id = (await client.post("/run", json=body)).json()["id"]
    return await ended(client, job_id)


async def ended(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await client.get(f"/status-sync/{job_id}?wait=30000")).json()
    return job


async def fetched(url: str) -> Any:
    """Return what is at an address, which tells all that is needed to read it."""
    return json.loads(await asyncio.to_thread(lambda: httpx2.get(url).raise_for_status().content))


async def test_result_is_where_the_pointer_says_and_the_secret_nowhere(
    serve: Serve, script: ScriptFactory, server: Seaweed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (await serve(script(SHORT))).client() as client:
        sent = config(server.url, objectPath="of/mine")
        job = await run(client, s3Config=sent)
        assert job["status"] == "COMPLETED", job
        place = job["output"]["result"]
        assert (place["bucket"], place["key"]) == (BUCKET, f"of/mine/{job['id']}.json")
        stored = await fetched(place["url"])
        assert stored["choices"][0]["text"] == "yes sir"
        assert stored["usage"] == job["output"]["usage"]
        kept = server.client().get_object(Bucket=BUCKET, Key=place["key"])["Body"].read()
        assert (len(kept), json.loads(kept)) == (place["bytes"], stored)

        answers = [
            (await client.get(path)).text
            for path in (f"/status/{job['id']}", "/requests", f"/requests/{job['id']}")
        ]
        sync = await client.post("/runsync", json={"input": {"prompt": "x"}, "s3Config": sent})
        assert sync.json()["output"]["result"]["key"] == f"of/mine/{sync.json()['id']}.json"
        for said in (*answers, sync.text, caplog.text):
            assert "s3Config" not in said
            assert SECRET not in said


async def test_bucket_is_kept_with_its_job_until_a_worker_has_it(
    serve: Serve, script: ScriptFactory, server: Seaweed, tmp_path: Path
) -> None:
    database = str(tmp_path / "jobs.sqlite3")
    alone = EmulatorSettings(
        engine="scripted", engine_isolation="thread", local_worker=False, job_db=database
    )
    async with run_server(alone) as first, first.client() as client:
        body = {"input": {"prompt": "x"}, "s3Config": config(server.url)}
        job_id = (await client.post("/run", json=body)).json()["id"]
    async with (await serve(script(SHORT), job_db=database)).client() as client:
        job = await ended(client, job_id)
        assert job["output"]["result"]["key"] == f"{job_id}.json"


async def test_outputs_are_streamed_and_all_of_them_are_in_the_bucket(
    serve: Serve, script: ScriptFactory, server: Seaweed
) -> None:
    async with (await serve(script(SHORT), stream_mode="generator")).client() as client:
        job = await run(client, s3Config=config(server.url))
        (pointer,) = job["output"]
        stored = await fetched(pointer["result"]["url"])
        stream = (await client.get(f"/stream/{job['id']}")).json()["stream"]
        assert [each["output"] for each in stream] == [*stored, pointer]
        assert stored[-1]["choices"][0]["text"] == "yes sir"
        assert pointer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.usefixtures("variables")
async def test_large_results_go_to_the_bucket_of_the_variables(
    serve: Serve, script: ScriptFactory
) -> None:
    async with (await serve(script(LONG, SHORT))).client() as client:
        small, large = await run(client), await run(client, "long")
        assert small["output"]["choices"][0]["text"] == "yes sir"
        place = large["output"]["result"]
        assert (place["bucket"], place["key"]) == (BUCKET, f"{large['id']}.json")
        assert (await fetched(place["url"]))["choices"][0]["text"] == "x" * 20_000


@pytest.mark.usefixtures("variables")
async def test_openai_calls_keep_their_answers_and_say_so_where_they_cannot(
    serve: Serve, script: ScriptFactory
) -> None:
    path = "/v2/default/openai/v1/completions"
    body = {"prompt": "long"}
    async with (await serve(script(LONG))).client() as client:
        answer = await client.post(path, json=body)
        assert len(answer.json()["choices"][0]["text"]) == 20_000
    async with (await serve(script(LONG), max_runsync_mb=0.11)).client() as client:
        answer = await client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (413, "result_too_large_error")
        url = error["message"].removeprefix("the answer was put into a bucket: ")
        assert len((await fetched(url))["choices"][0]["text"]) == 20_000
        # What is streamed has been said by then.
        streamed = await client.post(path, json=body | {"stream": True})
        said = "".join(each["choices"][0]["text"] for each in parse_chunks(streamed.content))
        assert len(said) == 20_000


# ---- what goes wrong ----


def check_failed(job: dict[str, Any], *said: str) -> None:
    """Check that a job says why it failed, and no more."""
    assert (job["status"], job.keys() & {"output"}) == ("FAILED", set())
    assert job["error"].startswith("the result could not be put into the bucket: s3://")
    assert "\n" not in job["error"]
    assert SECRET not in job["error"]
    for each in said:
        assert each in job["error"]


async def test_credentials_that_do_not_do(
    serve: Serve, script: ScriptFactory, server: Seaweed
) -> None:
    async with (await serve(script(SHORT))).client() as client:
        for changes, said in [
            ({"accessId": "nobody"}, "InvalidAccessKeyId"),
            ({"accessSecret": "another-one"}, "SignatureDoesNotMatch"),
            ({"accessId": READER}, "AccessDenied"),
        ]:
            job = await run(client, s3Config=config(server.url, **changes))
            check_failed(job, said)
            for secret in changes.values():
                assert secret not in job["error"]
        # The next one is none the worse.
        assert "result" in (await run(client, s3Config=config(server.url)))["output"]


async def test_bucket_that_is_not_there(serve: Serve, script: ScriptFactory) -> None:
    """By moto: the other server makes buckets that it is asked for."""
    async with (await serve(script(SHORT))).client() as client:
        with mock_aws():
            given = config("https://s3.eu-central-1.amazonaws.com", bucketName="nobodys")
            check_failed(await run(client, s3Config=given), "s3://nobodys/", "NoSuchBucket")


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_server_that_is_not_there(
    serve: Serve, script: ScriptFactory, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    async with (await serve(script(SHORT), stream_mode=mode)).client() as client:
        down = f"http://127.0.0.1:{free_port()}"
        check_failed(await run(client, s3Config=config(down)), "Could not connect", down)


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
