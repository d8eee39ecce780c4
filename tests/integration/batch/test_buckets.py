"""Batches from one bucket to another, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import ROOT, call, run, text
from tests.seaweed import KEY, READER, SECRET, Seaweed, seaweed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        server.client().create_bucket(Bucket="lines")
        yield server


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    return script({"when": "fails", "pieces": [{"error": "it was asked to fail"}]}, {}, slots=4)


def environment_of(server: Seaweed, **overrides: str) -> dict[str, str]:
    """Return the environment variables for the server."""
    return {
        "AWS_ENDPOINT_URL_S3": server.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        **overrides,
    }


def put(client: Any, key: str, lines: list[dict[str, Any]]) -> str:
    body = "".join(json.dumps(line) + "\n" for line in lines)
    client.put_object(Bucket="lines", Key=key, Body=body.encode())
    return f"s3://lines/{key}"


def get(client: Any, key: str) -> list[dict[str, Any]]:
    body = client.get_object(Bucket="lines", Key=key)["Body"].read()
    return [json.loads(line) for line in body.splitlines()]


def test_run_from_bucket_to_bucket(model: Path, server: Seaweed) -> None:
    client = server.client()
    input_url = put(client, "whole/in.jsonl", [call("a", "one"), call("b", "it fails")])
    output = "s3://lines/whole/out.jsonl"
    completed = run(model, "-i", input_url, "-o", output, variables=environment_of(server))
    assert completed.returncode == 1, completed.stderr
    assert [text(line) for line in get(client, "whole/out.jsonl")] == ["one"]
    assert [line["custom_id"] for line in get(client, "whole/out.errors.jsonl")] == ["b"]
    assert not (ROOT / "out.jsonl.partial").exists()

    repeated = run(model, "-i", input_url, "-o", output, variables=environment_of(server))
    assert repeated.returncode == 1
    errors = "s3://lines/whole/out.errors.jsonl"
    assert repeated.stderr.decode().splitlines() == [
        "2 of 2 lines answered already",
        "tokens: 1 prompt, 1 completion",
        f"1 of them failed: {errors}",
    ]

    put(client, "whole/in.jsonl", [call("c", "two")])
    other = run(model, "-i", input_url, "-o", output, variables=environment_of(server))
    assert other.returncode == 2
    assert other.stderr.decode() == f"{output} exists already; --force replaces it\n"
    forced = run(model, "-i", input_url, "-o", output, "--force", variables=environment_of(server))
    assert forced.returncode == 0, forced.stderr
    assert [text(line) for line in get(client, "whole/out.jsonl")] == ["two"]
    listed = client.list_objects_v2(Bucket="lines", Prefix="whole/")
    assert [each["Key"] for each in listed["Contents"]] == [
        *("whole/.out.jsonl.finished", "whole/in.jsonl", "whole/out.jsonl")
    ]


@pytest.mark.long_except(
    "s3://lines/none-{out}-overrides0-s3://lines/none: NoSuchKey: ",
    "{in}-s3://lines/x-overrides3-InvalidAccessKeyId",
)
@pytest.mark.parametrize(
    ("input_url", "output", "overrides", "message"),
    [
        ("s3://lines/none", "{out}", {}, "s3://lines/none: NoSuchKey: "),
        ("s3://lines", "{out}", {}, "s3://lines must be s3://BUCKET/KEY"),
        ("{in}", "s3://lines/", {}, "s3://lines/ must be s3://BUCKET/KEY"),
        ("{in}", "s3://lines/x", {"AWS_ACCESS_KEY_ID": "x"}, "InvalidAccessKeyId"),
        ("s3://lines/x", "{out}", {"AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch"),
        ("{in}", "{in}", {}, "is the input and would be overwritten"),
    ],
)
def test_run_reports_bucket_errors_in_one_message(
    model: Path,
    server: Seaweed,
    tmp_path: Path,
    input_url: str,
    output: str,
    overrides: dict[str, str],
    message: str,
) -> None:
    addresses = {
        "in": put(server.client(), "refused/in.jsonl", [call("a")]),
        "out": str(tmp_path / "out.jsonl"),
    }
    variables = environment_of(server, **overrides)
    if overrides and input_url == "{in}":
        # Only the output uses the wrong credentials.
        addresses["in"] = str(tmp_path / "in.jsonl")
        Path(addresses["in"]).write_text(json.dumps(call("a")))
    completed = run(
        model,
        "-i",
        input_url.format(**addresses),
        "-o",
        output.format(**addresses),
        variables=variables,
    )
    assert completed.returncode == 2, completed.stderr
    assert message in completed.stderr.decode()
    assert len(completed.stderr.splitlines()) == 1


def test_run_resumes_after_a_failed_upload(model: Path, server: Seaweed, tmp_path: Path) -> None:
    """The upload fails after all lines are answered; no line is answered again."""
    client = server.client()
    input_url = put(client, "lost/in.jsonl", [call("a", "one")])
    output = "s3://lines/lost/out.jsonl"
    # This user may read and list, but not write.
    wrong = environment_of(server, AWS_ACCESS_KEY_ID=READER)
    completed = run(model, "-i", input_url, "-o", output, cwd=tmp_path, variables=wrong)
    assert completed.returncode == 3, completed.stderr
    assert b"AccessDenied" in completed.stderr
    assert b"run the same command again to resume" in completed.stderr
    assert (tmp_path / "out.jsonl.partial").exists()
    # The model is not loaded again.
    none = tmp_path / "none.json"
    none.write_text("no script")
    completed = run(
        none,
        "-i",
        input_url,
        "-o",
        output,
        cwd=tmp_path,
        MODEL_NAME=model.stem,
        variables=environment_of(server),
    )
    assert completed.returncode == 0, completed.stderr
    assert [text(line) for line in get(client, "lost/out.jsonl")] == ["one"]
    assert [*tmp_path.glob("*.partial")] == []
