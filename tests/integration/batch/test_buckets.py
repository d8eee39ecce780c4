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
    with seaweed(tmp_path_factory.mktemp("seaweed")) as found:
        found.client().create_bucket(Bucket="lines")
        yield found


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    return script({"when": "fails", "pieces": [{"error": "it was asked to fail"}]}, {}, slots=4)


def usual(server: Seaweed, **other: str) -> dict[str, str]:
    """Return the variables of the usual chain."""
    return {
        "AWS_ENDPOINT_URL_S3": server.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        **other,
    }


def put(client: Any, key: str, lines: list[dict[str, Any]]) -> str:
    body = "".join(json.dumps(line) + "\n" for line in lines)
    client.put_object(Bucket="lines", Key=key, Body=body.encode())
    return f"s3://lines/{key}"


def get(client: Any, key: str) -> list[dict[str, Any]]:
    body = client.get_object(Bucket="lines", Key=key)["Body"].read()
    return [json.loads(line) for line in body.splitlines()]


def test_from_a_bucket_to_a_bucket(model: Path, server: Seaweed) -> None:
    client = server.client()
    given = put(client, "whole/in.jsonl", [call("a", "one"), call("b", "it fails")])
    output = "s3://lines/whole/out.jsonl"
    ran = run(model, "-i", given, "-o", output, variables=usual(server))
    assert ran.returncode == 1, ran.stderr
    assert [text(line) for line in get(client, "whole/out.jsonl")] == ["one"]
    assert [line["custom_id"] for line in get(client, "whole/out.errors.jsonl")] == ["b"]
    assert not (ROOT / "out.jsonl.partial").exists()

    again = run(model, "-i", given, "-o", output, variables=usual(server))
    assert again.returncode == 2
    assert again.stderr.decode() == f"{output} exists already; --force replaces it\n"

    put(client, "whole/in.jsonl", [call("c", "two")])
    forced = run(model, "-i", given, "-o", output, "--force", variables=usual(server))
    assert forced.returncode == 0, forced.stderr
    assert [text(line) for line in get(client, "whole/out.jsonl")] == ["two"]
    listed = client.list_objects_v2(Bucket="lines", Prefix="whole/")
    assert [each["Key"] for each in listed["Contents"]] == ["whole/in.jsonl", "whole/out.jsonl"]


@pytest.mark.parametrize(
    ("given", "output", "other", "said"),
    [
        ("s3://lines/none", "{out}", {}, "s3://lines/none: NoSuchKey: "),
        ("s3://lines", "{out}", {}, "s3://lines must be s3://BUCKET/KEY"),
        ("{in}", "s3://lines/", {}, "s3://lines/ must be s3://BUCKET/KEY"),
        ("{in}", "s3://lines/x", {"AWS_ACCESS_KEY_ID": "x"}, "InvalidAccessKeyId"),
        ("s3://lines/x", "{out}", {"AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch"),
        ("{in}", "{in}", {}, "is the input and would be overwritten"),
    ],
)
def test_what_cannot_be_is_one_message(
    model: Path,
    server: Seaweed,
    tmp_path: Path,
    given: str,
    output: str,
    other: dict[str, str],
    said: str,
) -> None:
    places = {
        "in": put(server.client(), "refused/in.jsonl", [call("a")]),
        "out": str(tmp_path / "out.jsonl"),
    }
    variables = usual(server, **other)
    if other and given == "{in}":
        # Only the output is to be wrong.
        places["in"] = str(tmp_path / "in.jsonl")
        Path(places["in"]).write_text(json.dumps(call("a")))
    ran = run(
        model, "-i", given.format(**places), "-o", output.format(**places), variables=variables
    )
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr.decode()
    assert len(ran.stderr.splitlines()) == 1


def test_an_upload_that_fails_costs_no_answer(model: Path, server: Seaweed, tmp_path: Path) -> None:
    """It is found out when all is answered, and nothing is asked again."""
    client = server.client()
    given = put(client, "lost/in.jsonl", [call("a", "one")])
    output = "s3://lines/lost/out.jsonl"
    # May read and list, and may not write.
    wrong = usual(server, AWS_ACCESS_KEY_ID=READER)
    ran = run(model, "-i", given, "-o", output, cwd=tmp_path, variables=wrong)
    assert ran.returncode == 3, ran.stderr
    assert b"AccessDenied" in ran.stderr
    assert b"run the same command again to resume" in ran.stderr
    assert (tmp_path / "out.jsonl.partial").exists()
    # No model is loaded any more.
    none = tmp_path / "none.json"
    none.write_text("no script")
    ran = run(
        none,
        "-i",
        given,
        "-o",
        output,
        cwd=tmp_path,
        MODEL_NAME=model.stem,
        variables=usual(server),
    )
    assert ran.returncode == 0, ran.stderr
    assert [text(line) for line in get(client, "lost/out.jsonl")] == ["one"]
    assert [*tmp_path.glob("*.partial")] == []
