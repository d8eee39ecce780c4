"""Blobs in a bucket of S3, or of a server that speaks as it does."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from handler.blobs.blob import (
    BlobDenied,
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
    BlobUnsupported,
)

# Above S3's least of 5 MiB; 10,000 parts of it are 80 GB.
PART_BYTES = 8 << 20
_READ_BYTES = 1 << 20
# Two conditional writes at the same time are both sent away with 409, and may try again.
_CONFLICT_TRIES = 6
_CONFLICT_PAUSE_S = 0.1

# The codes that a message names of a server that a client has chosen. Everything else in its
# answer may be the text of an internal server (https://docs.aws.amazon.com/AmazonS3/latest/API/
# ErrorResponses.html).
_S3_CODES = frozenset(
    (
        *("AccessDenied", "AllAccessDisabled", "AccountProblem", "AuthorizationHeaderMalformed"),
        *(
            "BadDigest",
            "EntityTooLarge",
            "EntityTooSmall",
            "ExpiredToken",
            "IllegalLocationConstraint",
        ),
        *("IncompleteBody", "InternalError", "InvalidAccessKeyId", "InvalidArgument"),
        *(
            "InvalidBucketName",
            "InvalidDigest",
            "InvalidRequest",
            "InvalidSecurity",
            "InvalidToken",
        ),
        *(
            "KeyTooLongError",
            "MethodNotAllowed",
            "MissingContentLength",
            "NoSuchBucket",
            "NoSuchKey",
        ),
        *("NotImplemented", "NotSignedUp", "OperationAborted", "PermanentRedirect"),
        *("PreconditionFailed", "ConditionalRequestConflict", "RequestTimeTooSkewed"),
        *("RequestTimeout", "ServiceUnavailable", "SignatureDoesNotMatch", "SlowDown"),
        *("TemporaryRedirect", "TooManyBuckets", "XAmzContentSHA256Mismatch", "QuotaExceeded"),
    )
)
# Their messages are the library's own words and name the URL alone.
_CONNECTION_ERRORS = (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "404", "NotFound"}
_DENIED = {
    "AccessDenied",
    "403",
    "Forbidden",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "RequestTimeTooSkewed",
    "UnrecognizedClientException",
}


def s3_client(
    endpoint_url: str | None = None, tries: int = 5, answer_s: float = 60, /, **given: Any
) -> Any:
    """Return a client with the usual chain of credentials; `endpoint_url` is of another server.

    botocore tries again by itself what may pass, `tries` times in all, and waits `answer_s` for
    each answer.
    """
    config = Config(
        signature_version="s3v4",
        connect_timeout=10,
        read_timeout=answer_s,
        retries={"mode": "standard", "max_attempts": tries},
    )
    return boto3.client("s3", endpoint_url=endpoint_url, config=config, **given)


class S3Blobs:
    """Keeps each blob as an object of one bucket; boto3's client may be used by several threads.

    Without `shows_answers`, errors contain the server's status and code but no text of its answer,
    for it may be any server that a client has named.
    """

    def __init__(self, bucket: str, client: Any, *, shows_answers: bool = True) -> None:
        self._bucket = bucket
        self._client = client
        self._shows_answers = shows_answers

    def url(self, key: str) -> str:
        """Return a blob's address, as `s3://BUCKET/KEY`."""
        return self._name(key)

    def read(self, key: str) -> Generator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""
        with self._told(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            body = answer["Body"]
            try:
                yield from body.iter_chunks(_READ_BYTES)
            finally:
                # A reader may stop before the end; the connection is of no more use then.
                body.close()

    def write(self, key: str, body: bytes, *, absent: bool = False) -> bool:
        """Keep a blob; return whether it was written."""
        condition = {"IfNoneMatch": "*"} if absent else {}
        with self._told(key):
            for _ in self._tries():
                try:
                    self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
                except ClientError as error:
                    if _exists(error):
                        return False
                    if not _conflicts(error):
                        raise
                else:
                    return True
        raise BlobUnavailable(f"{self._name(key)}: others write to it at the same time")

    def upload(self, key: str, pieces: Iterable[bytes], *, absent: bool = False) -> bool:
        """Keep a blob; one of several parts is there when the last of them is."""
        parts = _parts(pieces)
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            return self.write(key, first, absent=absent)
        with self._told(key):
            begun = {"Bucket": self._bucket, "Key": key}
            begun["UploadId"] = self._client.create_multipart_upload(**begun)["UploadId"]
            try:
                done = [self._part(begun, 1, first), self._part(begun, 2, second)]
                done += [self._part(begun, number, part) for number, part in enumerate(parts, 3)]
                condition = {"IfNoneMatch": "*"} if absent else {}
                self._client.complete_multipart_upload(
                    **begun, MultipartUpload={"Parts": done}, **condition
                )
            except BaseException as error:
                # Parts that nobody completes are kept, and paid for.
                self._client.abort_multipart_upload(**begun)
                if isinstance(error, ClientError) and _exists(error):
                    return False
                raise
        return True

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys begin so, in the order of their keys."""
        with self._told(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    yield BlobInfo(each["Key"], each["Size"], each["LastModified"].timestamp())

    def remove(self, key: str) -> None:
        """Forget a blob, if it is there."""
        with self._told(key):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def link(self, key: str, expires_s: int) -> str:
        """Return a presigned address."""
        with self._told(key):
            return str(
                self._client.generate_presigned_url(
                    "get_object",
                    Params={"Bucket": self._bucket, "Key": key},
                    ExpiresIn=expires_s,
                )
            )

    def _part(self, begun: dict[str, Any], number: int, part: bytes) -> dict[str, Any]:
        answer = self._client.upload_part(**begun, PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _tries(self) -> Iterator[None]:
        for number in range(_CONFLICT_TRIES):
            if number:
                time.sleep(_CONFLICT_PAUSE_S * number)
            yield

    def _name(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Translate boto3's errors into those of blobs."""
        name = self._name(key)
        try:
            yield
        except ClientError as error:
            raise _blob_error(name, error, shows_answer=self._shows_answers) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BlobDenied(f"{name}: {error}") from None
        except ResponseParserError as error:
            # Its message is the answer's text.
            reason = str(error) if self._shows_answers else "the answer is not one of S3"
            raise BlobUnavailable(f"{name}: {reason}") from None
        except BotoCoreError as error:
            is_own_text = isinstance(error, _CONNECTION_ERRORS) or not _is_of_library(error)
            reason = str(error) if self._shows_answers or is_own_text else type(error).__name__
            raise BlobUnavailable(f"{name}: {reason}") from None


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes as parts of `PART_BYTES`, but for the last."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        while len(gathered) >= PART_BYTES:
            yield bytes(gathered[:PART_BYTES])
            del gathered[:PART_BYTES]
    if gathered:
        yield bytes(gathered)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _exists(error: ClientError) -> bool:
    return _code(error) in {"PreconditionFailed", "412"}


def _conflicts(error: ClientError) -> bool:
    return _code(error) in {"ConditionalRequestConflict", "409"}


def _is_of_library(error: BotoCoreError) -> bool:
    return type(error).__module__.startswith("botocore")


def _blob_error(name: str, error: ClientError, *, shows_answer: bool = True) -> BlobError:
    code = _code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if shows_answer:
        reason = str(error.response.get("Error", {}).get("Message") or "no reason was given")
        message = f"{name}: {code or 'an error'}: {reason}"
    else:
        message = f"{name}: {code if code in _S3_CODES else 'an error'} (status {status})"
    if code in _NOT_FOUND:
        return BlobNotFound(message)
    if code in _DENIED:
        return BlobDenied(message)
    if code == "NotImplemented":
        return BlobUnsupported(message)
    if status in {409, 429} or status >= 500 or code in {"SlowDown", "RequestTimeout"}:
        return BlobUnavailable(message)
    return BlobError(message)
