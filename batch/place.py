"""The bucket in which the batches of a queue are: what has to be answered, and what has been."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from batch.target import is_blob
from handler.blobs import BlobError, BlobInfo, BlobNotFound
from handler.blobs.s3 import S3Blobs, s3_client
from jobs import StoreUnavailable
from jobs.sqs.errors import QueueRefused

_PROBE = ".writable"


class Place:
    """A bucket and a prefix in it. All calls block, and may be made from several threads.

    Each raises StoreUnavailable, or QueueRefused where another try would end the same.
    """

    def __init__(self, bucket: str, prefix: str, client: Any) -> None:
        self.bucket = bucket
        self._prefix = prefix
        self._client = client
        self._blobs = S3Blobs(bucket, client)

    @classmethod
    def at(cls, url: str, client: Any = None) -> Place:
        """Return what `s3://BUCKET/PREFIX` names. Raises ValueError."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not is_blob(url) or not bucket:
            raise ValueError(f"{url} must be s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = prefix.strip("/")
        with _told():
            return cls(bucket, f"{prefix}/" if prefix else "", client or s3_client())

    def url(self, key: str) -> str:
        """Return a key's whole address."""
        return f"s3://{self.bucket}/{self._prefix}{key}"

    def check(self) -> None:
        """Find out whether one may read and write here, before anything is worked for."""
        with _told():
            self._blobs.write(f"{self._prefix}{_PROBE}", b"", absent=True)
            for _ in self._blobs.read(f"{self._prefix}{_PROBE}"):
                pass

    def find(self, key: str) -> bytes | None:
        """Return what is there, or None."""
        with _told():
            try:
                return b"".join(self._blobs.read(f"{self._prefix}{key}"))
            except BlobNotFound:
                return None

    def first_piece(self, key: str) -> bytes | None:
        """Return how something begins that is there, or None."""
        with _told():
            try:
                return next(iter(self._blobs.read(f"{self._prefix}{key}")), b"")
            except BlobNotFound:
                return None

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield what is there."""
        with _told():
            yield from self._blobs.read(f"{self._prefix}{key}")

    def put(self, key: str, body: bytes) -> None:
        """Keep something in place of what is there."""
        with _told():
            self._blobs.write(f"{self._prefix}{key}", body)

    def put_first(self, key: str, body: bytes) -> bool:
        """Keep something where there is nothing; return whether it was."""
        with _told():
            return self._blobs.write(f"{self._prefix}{key}", body, absent=True)

    def upload_first(self, key: str, pieces: Iterable[bytes]) -> bool:
        """Do the same for what is too large to be in memory."""
        with _told():
            return self._blobs.upload(f"{self._prefix}{key}", pieces, absent=True)

    def list(self, key: str) -> Iterator[BlobInfo]:
        """Yield what is there under keys that begin so."""
        with _told():
            yield from self._blobs.list(f"{self._prefix}{key}")

    def keep(self, name: str, body: bytes) -> str:
        """Keep a message's body under its name, and return its whole key."""
        self.put_first(f"bodies/{name}", body)
        return f"{self._prefix}bodies/{name}"

    def read(self, bucket: str, key: str) -> bytes:
        """Return a message's body, from whichever bucket its sender has put it in."""
        with _told():
            return b"".join(S3Blobs(bucket, self._client).read(key))


@contextmanager
def _told() -> Iterator[None]:
    """Tell a bucket's errors as a queue's: whoever works for one needs both."""
    try:
        yield
    except BlobError as error:
        if error.retryable:
            raise StoreUnavailable(str(error)) from None
        raise QueueRefused(str(error)) from None
