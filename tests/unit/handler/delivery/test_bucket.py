"""Parse a job's `s3Config`: valid fields, error messages, and no secret in any message."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.client import BaseClient

from handler.delivery.bucket import Bucket, find_region, open_bucket, read_s3_config
from handler.delivery.outbound_targets import OutboundPolicy
from handler.errors import InvalidRequest

SECRET = "Zm9v/s3cr3t+Zm9v"
S3_CONFIG = {
    "accessId": "AKIDEXAMPLE",
    "accessSecret": SECRET,
    "bucketName": "my-results",
    "endpointUrl": "https://s3.eu-central-1.amazonaws.com",
}
NO_URL = (
    "s3Config.endpointUrl must be an http or https address like "
    "https://s3.eu-central-1.amazonaws.com"
)


def test_all_fields_of_runpods_s3_config_are_read() -> None:
    assert read_s3_config(S3_CONFIG) == Bucket(
        name="my-results",
        endpoint_url="https://s3.eu-central-1.amazonaws.com",
        access_id="AKIDEXAMPLE",
        access_secret=SECRET,
        targets=OutboundPolicy(),
    )
    bucket = read_s3_config(
        S3_CONFIG | {"objectPath": "/a/b c/", "endpointUrl": "http://[::1]:9000/"}
    )
    assert (bucket.endpoint_url, bucket.folder) == ("http://[::1]:9000", "a/b c")
    assert bucket.key("x.json") == "a/b c/x.json"
    assert read_s3_config(S3_CONFIG | {"objectPath": None, "region": 1}).key("x.json") == "x.json"
    assert read_s3_config(S3_CONFIG | {"objectPath": ""}).key("x.json") == "x.json"


@pytest.mark.parametrize("name", S3_CONFIG)
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "none"),
        ("", "an empty string"),
        (5, "a number"),
        (True, "true or false"),
        ([SECRET], "an array"),
        ({"x": SECRET}, "an object"),
    ],
)
def test_field_that_is_missing_or_no_text_is_named(name: str, value: Any, got: str) -> None:
    message = f"s3Config.{name} must be a non-empty string, got {got}"
    for s3_config in [
        S3_CONFIG | {name: value},
        {key: S3_CONFIG[key] for key in S3_CONFIG if key != name},
    ]:
        with pytest.raises(InvalidRequest) as refused:
            read_s3_config(s3_config)
        assert refused.value.param == f"s3Config.{name}"
        if name in s3_config:
            assert refused.value.message == message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("accessId", "two words", "s3Config.accessId must be up to 1000 ASCII characters without"),
        ("accessSecret", f"{SECRET}\n", "s3Config.accessSecret must be up to 1000 ASCII"),
        ("accessSecret", "ü" + SECRET, "s3Config.accessSecret must be up to 1000 ASCII"),
        ("bucketName", "a/b", "s3Config.bucketName must be a bucket's name (letters, digits, dot"),
        ("bucketName", "..", "s3Config.bucketName must be a bucket's name"),
        ("bucketName", "x" * 256, "s3Config.bucketName must be a bucket's name"),
        ("endpointUrl", "s3.amazonaws.com", f'{NO_URL}, got "s3.amazonaws.com"'),
        ("endpointUrl", "ftp://here", f'{NO_URL}, got "ftp://here"'),
        ("endpointUrl", "https://", f'{NO_URL}, got "https://"'),
        ("endpointUrl", "http://here:port", f'{NO_URL}, got "http://here:port"'),
        ("endpointUrl", "http://here:0", f'{NO_URL}, got "http://here:0"'),
        ("endpointUrl", "http://[here", f'{NO_URL}, got "http://[here"'),
        ("endpointUrl", "http://he re", f'{NO_URL}, got "http://he re"'),
        ("endpointUrl", "http://" + "x" * 2_000, f'{NO_URL}, got "http://xxxx'),
        ("endpointUrl", f"https://me:{SECRET[:3]}@here", f"{NO_URL}, without user, query and frag"),
        ("endpointUrl", f"https://here?key={SECRET}", f"{NO_URL}, without user, query and frag"),
        ("objectPath", 5, "s3Config.objectPath must be a folder's path of up to 500 printable"),
        ("objectPath", "a/../b", "s3Config.objectPath must be a folder's path"),
        ("objectPath", "a\nb", "s3Config.objectPath must be a folder's path"),
        ("objectPath", "x" * 501, "s3Config.objectPath must be a folder's path"),
    ],
)
def test_value_that_cannot_be_is_named_with_what_can(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_s3_config(S3_CONFIG | {name: value})
    message = refused.value.message
    assert message.startswith(expected)
    assert refused.value.param == f"s3Config.{name}"
    assert len(message) < 250
    assert SECRET[:3] not in message


@pytest.mark.parametrize(
    ("s3_config", "got"), [("s3://x", "a string"), ([1], "an array"), (7, "a number")]
)
def test_config_that_is_no_object(s3_config: Any, got: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_s3_config(s3_config)
    fields = "accessId, accessSecret, bucketName, endpointUrl"
    assert refused.value.message == f"s3Config must be an object with {fields}, got {got}"


def test_keys_are_not_in_its_text() -> None:
    bucket = read_s3_config(S3_CONFIG)
    assert SECRET not in repr(bucket)
    assert "AKID" not in repr(bucket)
    expected = bucket.without_secrets(f"bad header AKIDEXAMPLE/{SECRET}/x")
    assert expected == "bad header ***/***/x"
    assert Bucket(name="a").without_secrets("a") == "a"


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://bucket.s3.us-west-2.amazonaws.com", "us-west-2"),
        ("https://s3.amazonaws.com", None),
        ("https://s3.us-west-004.backblazeb2.com", "us-west-004"),
        ("https://fra1.digitaloceanspaces.com", "fra1"),
        ("https://bucket.fra1.digitaloceanspaces.com", "fra1"),
        ("https://s3api-eu-ro-1.runpod.io", "EU-RO-1"),
        ("https://account.r2.cloudflarestorage.com", None),
        ("https://s3.example.com", None),
        ("http://127.0.0.1:9000", None),
        ("http://s3:9000", None),
    ],
)
def test_region_is_read_from_the_servers_name(url: str, region: str | None) -> None:
    assert find_region(url) == region


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/my-results/k?"),
        ("https://s3.eu-central-1.amazonaws.com", "https://s3.eu-central-1.amazonaws.com/my-resul"),
        # As RunPod's users write it, for the SDK's variables.
        (
            "https://my-results.s3.eu-central-1.amazonaws.com",
            "https://s3.eu-central-1.amazonaws.com/my-results/k?",
        ),
    ],
)
def test_address_of_a_result(url: str, at: str) -> None:
    link = open_bucket(read_s3_config(S3_CONFIG | {"endpointUrl": url})).link("k", 60)
    assert link.startswith(at)
    assert "X-Amz-Credential=AKIDEXAMPLE" in link
    assert SECRET not in link


def test_usual_chain_where_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-chain")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "X-Amz-Credential=of-the-chain" in open_bucket(Bucket(name="b")).link("k", 60)
    client: BaseClient = open_bucket(Bucket(name="b"))._client  # type: ignore[attr-defined]
    assert client.meta.region_name == "eu-west-1"
