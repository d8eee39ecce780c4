"""Store blobs as objects in a bucket of S3 or of a compatible server."""

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

from handler.delivery.blobs.blob import (
    BlobDenied,
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
    BlobUnsupported,
)

# Above S3's minimum of 5 MiB; the maximum of 10,000 parts allows 80 GB.
PART_BYTES = 8 << 20
_READ_BYTES = 1 << 20
# S3 may refuse both of two concurrent conditional writes with 409; each is then retried.
_CONFLICT_MAX_ATTEMPTS = 6
_CONFLICT_PAUSE_S = 0.1

# The error codes that messages contain if a client chose the server. Everything else in such a
# response may be the text of an internal server (https://docs.aws.amazon.com/AmazonS3/latest/API/
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
# The messages of these errors come from the library and contain no text of the server.
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
    endpoint_url: str | None = None,
    max_attempts: int = 5,
    read_timeout_s: float = 60,
    /,
    **options: Any,
) -> Any:
    """Return a boto3 client that uses the usual credential chain.

    `endpoint_url` is the URL of a server other than Amazon's. botocore makes up to `max_attempts`
    attempts if an error is temporary, and waits up to `read_timeout_s` for each response.
    """
    config = Config(
        signature_version="s3v4",
        connect_timeout=10,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "max_attempts": max_attempts},
    )
    return boto3.client("s3", endpoint_url=endpoint_url, config=config, **options)


class S3Blobs:
    """Stores each blob as an object of one bucket; boto3's client may be used by several threads.

    Without `exposes_responses`, errors contain the server's status and code but no text of its
    response, because a client may have named any server.
    """

    def __init__(self, bucket: str, client: Any, *, exposes_responses: bool = True) -> None:
        self._bucket = bucket
        self._client = client
        self._exposes_responses = exposes_responses

    def url(self, key: str) -> str:
        """Return a blob's URL, as `s3://BUCKET/KEY`."""
        return self._name(key)

    def read(self, key: str) -> Generator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""
        with self._translate_errors(key):
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            try:
                yield from body.iter_chunks(_READ_BYTES)
            finally:
                # If the reader stopped before the end, the connection cannot be reused.
                body.close()

    def write(self, key: str, body: bytes, *, only_if_absent: bool = False) -> bool:
        """Write a blob; return whether it was written."""
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        with self._translate_errors(key):
            for _ in self._conflict_attempts():
                try:
                    self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
                except ClientError as error:
                    if _is_existing(error):
                        return False
                    if not _is_conflict(error):
                        raise
                else:
                    return True
        raise BlobUnavailable(f"{self._name(key)}: others write to it at the same time")

    def upload(self, key: str, pieces: Iterable[bytes], *, only_if_absent: bool = False) -> bool:
        """Write a blob in parts; it appears when the last part is complete."""
        parts = _split_parts(pieces)
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            return self.write(key, first, only_if_absent=only_if_absent)
        with self._translate_errors(key):
            target = {"Bucket": self._bucket, "Key": key}
            target["UploadId"] = self._client.create_multipart_upload(**target)["UploadId"]
            try:
                uploaded = [
                    self._upload_part(target, 1, first),
                    self._upload_part(target, 2, second),
                ]
                uploaded += [
                    self._upload_part(target, number, part) for number, part in enumerate(parts, 3)
                ]
                condition = {"IfNoneMatch": "*"} if only_if_absent else {}
                self._client.complete_multipart_upload(
                    **target, MultipartUpload={"Parts": uploaded}, **condition
                )
            except BaseException as error:
                # S3 would store, and charge for, the parts of an incomplete upload.
                self._client.abort_multipart_upload(**target)
                if isinstance(error, ClientError) and _is_existing(error):
                    return False
                raise
        return True

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys start with `prefix`, ordered by key."""
        with self._translate_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    yield BlobInfo(each["Key"], each["Size"], each["LastModified"].timestamp())

    def remove(self, key: str) -> None:
        """Delete a blob if it exists."""
        with self._translate_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def link(self, key: str, expires_s: int) -> str:
        """Return a presigned URL."""
        with self._translate_errors(key):
            return str(
                self._client.generate_presigned_url(
                    "get_object",
                    Params={"Bucket": self._bucket, "Key": key},
                    ExpiresIn=expires_s,
                )
            )

    def _upload_part(self, target: dict[str, Any], number: int, part: bytes) -> dict[str, Any]:
        response = self._client.upload_part(**target, PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": response["ETag"]}

    def _conflict_attempts(self) -> Iterator[None]:
        for number in range(_CONFLICT_MAX_ATTEMPTS):
            if number:
                time.sleep(_CONFLICT_PAUSE_S * number)
            yield

    def _name(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Raise boto3's errors as BlobError."""
        name = self._name(key)
        try:
            yield
        except ClientError as error:
            raise _blob_error(name, error, exposes_response=self._exposes_responses) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BlobDenied(f"{name}: {error}") from None
        except ResponseParserError as error:
            # The message of this error is the text of the response.
            reason = str(error) if self._exposes_responses else "the answer is not one of S3"
            raise BlobUnavailable(f"{name}: {reason}") from None
        except BotoCoreError as error:
            is_own_text = isinstance(error, _CONNECTION_ERRORS) or not _is_botocore_error(error)
            reason = str(error) if self._exposes_responses or is_own_text else type(error).__name__
            raise BlobUnavailable(f"{name}: {reason}") from None


def _split_parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts of `PART_BYTES`; the last part may be smaller."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= PART_BYTES:
            yield bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
    if buffer:
        yield bytes(buffer)


def _error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_existing(error: ClientError) -> bool:
    return _error_code(error) in {"PreconditionFailed", "412"}


def _is_conflict(error: ClientError) -> bool:
    return _error_code(error) in {"ConditionalRequestConflict", "409"}


def _is_botocore_error(error: BotoCoreError) -> bool:
    return type(error).__module__.startswith("botocore")


def _blob_error(name: str, error: ClientError, *, exposes_response: bool = True) -> BlobError:
    code = _error_code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if exposes_response:
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
