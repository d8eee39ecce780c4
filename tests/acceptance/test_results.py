"""Results of `python -m handler` in a bucket, with the SDK, streaming and a real S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.workers.processes import WAIT_S, Job, Platform, SDKWorker
from tests.integration.handler.control_plane import ROOT, clean_environment
from tests.seaweed import KEY, SECRET, Seaweed, seaweed

ANSWERS: list[dict[str, Any]] = [
    {"when": "long", "pieces": ["x" * 4_000] * 5},
    {"pieces": ["so ", "it "], "repeat": 4, "delay_ms": 20},
]
TEXT = "so it " * 4

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as store:
        for bucket in ("ours", "theirs"):
            store.client().create_bucket(Bucket=bucket)
        yield store


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("platform"), LOCAL_WORKER="off", LOG_LEVEL="DEBUG")
    yield platform
    platform.close()


def variables(server: Seaweed, folder: Path) -> dict[str, str]:
    """Return a worker's variables, RunPod's of the bucket among them."""
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": ANSWERS, "slots": 4}))
    return {
        "MODEL_PATH": str(script),
        "STREAM_MODE": "generator",
        "STREAM_INTERVAL_MS": "1",
        "LOG_FORMAT": "json",
        "BUCKET_ENDPOINT_URL": server.url,
        "BUCKET_ACCESS_KEY_ID": KEY,
        "BUCKET_SECRET_ACCESS_KEY": SECRET,
        "BUCKET_NAME": "ours",
        "RESULT_MAX_MB": "0.01",
    }


@pytest.fixture(scope="module")
def worker(
    platform: Platform, server: Seaweed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SDKWorker]:
    folder = tmp_path_factory.mktemp("worker")
    worker = SDKWorker(platform, "mine", folder, ["-m", "handler"], variables(server, folder))
    yield worker
    worker.close()


def body(server: Seaweed, prompt: str = "x", **changes: Any) -> dict[str, Any]:
    config = {"accessId": KEY, "accessSecret": SECRET, "bucketName": "theirs"}
    return {
        "input": {"prompt": prompt, "stream": True},
        "s3Config": config | {"endpointUrl": server.url, "objectPath": "in/here"} | changes,
    }


def read_result(pointer: dict[str, Any]) -> Any:
    return httpx2.get(pointer["result"]["url"]).raise_for_status().json()


def test_job_with_a_bucket(platform: Platform, worker: SDKWorker, server: Seaweed) -> None:
    job = platform.send("mine", body(server))
    (pointer,) = job.output()
    assert pointer["result"]["bucket"] == "theirs"
    assert pointer["result"]["key"] == f"in/here/{job.id}.json"
    outputs = read_result(pointer)
    assert len(outputs) > 2
    assert job.read_stream() == [*outputs, pointer]
    assert outputs[-1]["choices"][0]["text"] == TEXT
    assert outputs[-1]["usage"] == pointer["usage"]
    assert pointer["choices"] == [{"index": 0, "finish_reason": "stop"}]
    for log in (platform.log, worker.log, json.dumps(job.call("requests"))):
        assert SECRET not in log


@pytest.mark.usefixtures("worker")
def test_large_result(platform: Platform) -> None:
    *fitting, pointer = platform.run("mine", {"prompt": "long", "stream": True}).output()
    assert pointer["result"]["bucket"] == "ours"
    outputs = read_result(pointer)
    # The outputs that fit are also in the job's output.
    assert fitting == outputs[: len(fitting)]
    assert len(fitting) < len(outputs)
    assert outputs[-1]["choices"][0]["text"] == "x" * 20_000


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_concurrent_jobs_with_and_without_a_bucket(platform: Platform, server: Seaweed) -> None:
    """The SDK uses one key for all jobs to decide whether to keep an output."""
    job_body = body(server)
    jobs = [
        platform.send("mine", job_body if number % 2 else {"input": job_body["input"]})
        for number in range(8)
    ]
    for number, job in enumerate(jobs):
        output = job.output()
        if number % 2:
            (pointer,) = output
            output = read_result(pointer)
        texts = [each["choices"][0]["text"] for each in output]
        assert "".join(texts[:-1]) == texts[-1] == TEXT


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_bucket_that_cannot_be_used(platform: Platform, server: Seaweed) -> None:
    bad = platform.send("mine", body(server, endpointUrl="here"))
    wrong = platform.send("mine", body(server, accessSecret="another-one"))
    assert bad.error().startswith("s3Config.endpointUrl must be an http or https address like ")
    error = wrong.error()
    assert error.startswith("the result could not be put into the bucket: s3://theirs/in/here/")
    assert "SignatureDoesNotMatch" in error
    assert "another-one" not in error


@pytest.mark.usefixtures("worker")
def test_program_of_the_docs(platform: Platform, server: Seaweed, tmp_path: Path) -> None:
    page = (ROOT / "docs/batch.md").read_text().partition("\n## Run on RunPod Serverless\n")[2]
    program = page.partition("```python\n")[2].partition("```")[0]
    for old, new in (
        ('"accessId": "…"', f'"accessId": "{KEY}"'),
        ('"accessSecret": "…"', f'"accessSecret": "{SECRET}"'),
        ("https://s3.eu-central-1.amazonaws.com", server.url),
        ("my-results", "theirs"),
        ("my-endpoint", "mine"),
        ('api_key = "…"', 'api_key = "any"'),
    ):
        assert old in program
        program = program.replace(old, new)
    request = {"url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 5}}
    lines = [{"custom_id": f"l{number}", **request} for number in "123"]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "sent.jsonl").write_text('{"custom_id": "l2", "job": "before"}\n')
    base = {"RUNPOD_ENDPOINT_BASE_URL": platform.url("x").removesuffix("/x")}
    subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(tmp_path, base),
        cwd=tmp_path,
        timeout=WAIT_S,
        check=True,
    )
    sent = [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in sent] == ["l2", "l1", "l3"]
    for each in sent[1:]:
        key = f"batch-1/{each['job']}.json"
        (pointer,) = Job(platform, "mine", each["job"]).output()
        assert pointer["result"]["key"] == key
        (output,) = read_result(pointer)
        assert output["choices"][0]["finish_reason"] == pointer["choices"][0]["finish_reason"]
