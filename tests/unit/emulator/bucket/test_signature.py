"""Signatures of version 4, as in Amazon's documentation, and of version 2."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from emulator.bucket.errors import BucketError
from emulator.bucket.keys import BucketKeys
from emulator.bucket.signature import check_signature

# The examples of "Authenticating Requests (AWS Signature Version 4)" in S3's API reference.
KEYS = BucketKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
SIGNED_AT = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
HOST = "examplebucket.s3.amazonaws.com"
SCOPE = "20130524/us-east-1/s3/aws4_request"
EMPTY = hashlib.sha256(b"").hexdigest()
URL_QUERY = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)
HEADERS = {
    "host": HOST,
    "range": "bytes=0-9",
    "x-amz-content-sha256": EMPTY,
    "x-amz-date": "20130524T000000Z",
    "authorization": f"AWS4-HMAC-SHA256 Credential={KEYS.access_key_id}/{SCOPE},"
    "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
    "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
}


def scope_of(
    headers: Mapping[str, str], query: str = "", *, method: str = "GET", path: str = "/test.txt"
) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8000),
    }


def refusal(scope: dict[str, Any], now: float = SIGNED_AT, keys: BucketKeys = KEYS) -> str:
    with pytest.raises(BucketError) as refused:
        check_signature(scope, keys, now)
    return refused.value.code


def test_signed_url_is_valid_until_it_expires() -> None:
    scope = scope_of({"host": HOST}, URL_QUERY)
    for now in (SIGNED_AT, SIGNED_AT + 86_400, SIGNED_AT - 900):
        check_signature(scope, KEYS, now)
    with pytest.raises(BucketError, match="Request has expired"):
        check_signature(scope, KEYS, SIGNED_AT + 86_401)
    assert refusal(scope, SIGNED_AT - 901) == "AccessDenied"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method": "PUT"}, "SignatureDoesNotMatch"),
        ({"path": "/test2.txt"}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY.replace("86400", "604800")}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY + "&response-content-type=text%2Fhtml"}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY[:-1] + "5"}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY[:-1] + "%C3%A4"}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY.replace("Headers=host", "Headers=")}, "SignatureDoesNotMatch"),
        ({"query": URL_QUERY.replace("86400", "604801")}, "AuthorizationQueryParametersError"),
        ({"query": URL_QUERY.replace("86400", "-1")}, "AuthorizationQueryParametersError"),
        ({"query": URL_QUERY.replace("EXAMPLE", "OTHER")}, "InvalidAccessKeyId"),
        ({"query": "X-Amz-Signature=0"}, "AuthorizationQueryParametersError"),
        ({"query": ""}, "AccessDenied"),
    ],
)
def test_changed_url_is_refused(changes: dict[str, Any], code: str) -> None:
    arguments = {"query": URL_QUERY, **changes}
    assert refusal(scope_of({"host": HOST}, **arguments)) == code


def test_signed_headers_are_valid_for_a_quarter_of_an_hour() -> None:
    scope = scope_of(HEADERS)
    for now in (SIGNED_AT - 900, SIGNED_AT + 900):
        check_signature(scope, KEYS, now)
    for now in (SIGNED_AT - 901, SIGNED_AT + 901):
        assert refusal(scope, now) == "RequestTimeTooSkewed"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("range", "bytes=0-8", "SignatureDoesNotMatch"),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD", "SignatureDoesNotMatch"),
        ("x-amz-date", "now", "SignatureDoesNotMatch"),
        ("authorization", "Bearer key", "InvalidRequest"),
        ("authorization", HEADERS["authorization"].replace("x-amz-date,", "x,"), "AccessDenied"),
        ("authorization", HEADERS["authorization"].replace("EXAMPLE", "X"), "InvalidAccessKeyId"),
    ],
)
def test_changed_header_is_refused(name: str, value: str, code: str) -> None:
    assert refusal(scope_of(HEADERS | {name: value})) == code


def test_other_secret_is_refused() -> None:
    keys = BucketKeys(KEYS.access_key_id, "another")
    assert refusal(scope_of({"host": HOST}, URL_QUERY), keys=keys) == "SignatureDoesNotMatch"
    assert refusal(scope_of(HEADERS), keys=keys) == "SignatureDoesNotMatch"


def signed_by_version_2(path: str, expires: int) -> str:
    text = f"GET\n\n\n{expires}\n{path}"
    digest = hmac.digest(KEYS.secret.encode(), text.encode(), hashlib.sha1)
    signature = base64.b64encode(digest).decode().replace("+", "%2B").replace("=", "%3D")
    return f"AWSAccessKeyId={KEYS.access_key_id}&Expires={expires}&Signature={signature}"


@pytest.mark.parametrize("signed_path", ["/s3/bucket/a%20b.txt", "/bucket/a%20b.txt"])
def test_url_of_version_2_is_valid_until_it_expires(signed_path: str) -> None:
    query = signed_by_version_2(signed_path, 1_000)
    scope = scope_of({"host": HOST}, query, path="/s3/bucket/a%20b.txt")
    check_signature(scope, KEYS, 1_000)
    assert refusal(scope, 1_001) == "AccessDenied"
    for changed in (
        query.replace("=1000", "=2000"),
        query + "&response-content-type=text%2Fhtml",
        query + "&uploads",
    ):
        scope = scope_of({"host": HOST}, changed, path="/s3/bucket/a%20b.txt")
        assert refusal(scope, 1_000) == "SignatureDoesNotMatch"
    assert refusal(scope_of({}, "Signature=x"), 0) == "InvalidAccessKeyId"
