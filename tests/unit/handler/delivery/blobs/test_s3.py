"""Responses of S3 that no local server gives: two conditional writes at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.stub import Stubber

from handler.delivery.blobs import (
    BlobDenied,
    BlobError,
    BlobNotFound,
    BlobUnavailable,
    BlobUnsupported,
)
from handler.delivery.blobs.s3 import S3Blobs, s3_client

CONDITION = {"Bucket": "b", "Key": "k", "Body": b"x", "IfNoneMatch": "*"}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("handler.delivery.blobs.s3.time.sleep", taken.append)
    return taken


@pytest.fixture
def answers() -> Iterator[Stubber]:
    client = s3_client(region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stubber:
        yield stubber


def conflict(answers: Stubber) -> None:
    code = "ConditionalRequestConflict"
    answers.add_client_error("put_object", code, "", 409, expected_params=CONDITION)


def write(answers: Stubber) -> bool:
    return S3Blobs("b", answers.client).write("k", b"x", only_if_absent=True)


def test_conflicting_write_is_retried(answers: Stubber, pauses: list[float]) -> None:
    conflict(answers)
    conflict(answers)
    answers.add_response("put_object", {}, CONDITION)
    assert write(answers)
    answers.assert_no_pending_responses()
    assert pauses == pytest.approx([0.1, 0.2])


def test_write_returns_false_when_the_other_writer_won(
    answers: Stubber, pauses: list[float]
) -> None:
    conflict(answers)
    answers.add_client_error("put_object", "PreconditionFailed", "", 412)
    assert not write(answers)
    assert len(pauses) == 1


def test_write_fails_after_six_conflicts(answers: Stubber, pauses: list[float]) -> None:
    for _ in range(6):
        conflict(answers)
    with pytest.raises(BlobUnavailable, match="s3://b/k: others write to it at the same time"):
        write(answers)
    answers.assert_no_pending_responses()
    assert len(pauses) == 5


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ExpiredToken", 400, BlobDenied),
        ("AccessDenied", 403, BlobDenied),
        ("InvalidAccessKeyId", 403, BlobDenied),
        ("SignatureDoesNotMatch", 403, BlobDenied),
        ("RequestTimeTooSkewed", 403, BlobDenied),
        ("NoSuchBucket", 404, BlobNotFound),
        ("SlowDown", 503, BlobUnavailable),
        ("InternalError", 500, BlobUnavailable),
        ("EntityTooLarge", 400, BlobError),
    ],
)
def test_every_refusal_has_its_kind_and_one_sentence(
    answers: Stubber, code: str, status: int, expected: type[BlobError]
) -> None:
    answers.add_client_error("put_object", code, "so it is", status)
    with pytest.raises(BlobError) as raised:
        S3Blobs("b", answers.client).write("k", b"x")
    assert type(raised.value) is expected
    assert str(raised.value) == f"s3://b/k: {code}: so it is"


def test_server_without_conditional_writes_raises_unsupported(answers: Stubber) -> None:
    message = "A header you provided implies functionality that is not implemented"
    answers.add_client_error(
        "put_object", "NotImplemented", message, 501, expected_params=CONDITION
    )
    with pytest.raises(BlobUnsupported, match=f"s3://b/k: NotImplemented: {message}"):
        write(answers)
