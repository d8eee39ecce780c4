"""The bucket of the batches of a queue: their manifests, long messages and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from batch.output.destination import is_blob_url
from handler.blobs import BlobError, BlobInfo, BlobNotFound
from handler.blobs.s3 import S3Blobs, s3_client
from jobs import StoreUnavailable
from jobs.sqs.errors import QueueRefused

_PROBE_KEY = ".writable"
# What is read into memory in one piece. An answer has at most the tokens of a context, with their
# log probabilities; a message's body is one line, which MAX_BODY_MB bounds at 10 MB unless set.
MAX_ANSWER_BYTES = 64_000_000
MAX_MESSAGE_BYTES = 10_000_000


class ObjectTooLarge(QueueRefused):
    """An object is longer than anything that is put there; it was not read to its end."""


class ResultBucket:
    """A bucket and a prefix in it. All calls block, and may be made from several threads.

    Each raises StoreUnavailable, or QueueRefused where another try would end the same. Whoever can
    write to the bucket or the queue decides how long an object is, so none is read without a bound:
    `max_message_bytes` is that of a message's body.
    """

    def __init__(
        self, bucket: str, prefix: str, client: Any, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.bucket = bucket
        self._max_message_bytes = max_message_bytes
        self._prefix = prefix
        self._client = client
        self._blobs = S3Blobs(bucket, client)

    @classmethod
    def from_url(
        cls, url: str, client: Any = None, *, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> ResultBucket:
        """Return what `s3://BUCKET/PREFIX` names. Raises ValueError."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not is_blob_url(url) or not bucket:
            raise ValueError(f"{url} must be s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = prefix.strip("/")
        with _queue_errors():
            folder = f"{prefix}/" if prefix else ""
            return cls(bucket, folder, client or s3_client(), max_message_bytes)

    def url(self, key: str) -> str:
        """Return a key's whole address."""
        return f"s3://{self.bucket}/{self._prefix}{key}"

    def check(self) -> None:
        """Check that the bucket can be read and written, before any work is done for it."""
        with _queue_errors():
            self._blobs.write(f"{self._prefix}{_PROBE_KEY}", b"", absent=True)
            for _ in self._blobs.read(f"{self._prefix}{_PROBE_KEY}"):
                pass

    def find(self, key: str, max_bytes: int = MAX_ANSWER_BYTES) -> bytes | None:
        """Return an object, or None if there is none. Raises TooLong beyond `max_bytes`."""
        with _queue_errors():
            try:
                return _read_bounded(self._blobs, f"{self._prefix}{key}", max_bytes)
            except BlobNotFound:
                return None

    def read_first_chunk(self, key: str) -> bytes | None:
        """Return the first piece of an object, or None if there is none."""
        with _queue_errors():
            try:
                return next(iter(self._blobs.read(f"{self._prefix}{key}")), b"")
            except BlobNotFound:
                return None

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """Yield an object in pieces."""
        with _queue_errors():
            yield from self._blobs.read(f"{self._prefix}{key}")

    def put(self, key: str, body: bytes) -> None:
        """Write an object, replacing any other."""
        with _queue_errors():
            self._blobs.write(f"{self._prefix}{key}", body)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Write an object unless there is one; return whether it was written."""
        with _queue_errors():
            return self._blobs.write(f"{self._prefix}{key}", body, absent=True)

    def upload_if_absent(self, key: str, pieces: Iterable[bytes]) -> bool:
        """Do the same as `put_first` for an object that is too large for memory."""
        with _queue_errors():
            return self._blobs.upload(f"{self._prefix}{key}", pieces, absent=True)

    def list(self, key: str) -> Iterator[BlobInfo]:
        """Yield the objects whose keys begin with `key`; their own keys have the prefix too."""
        with _queue_errors():
            yield from self._blobs.list(f"{self._prefix}{key}")

    def keep(self, name: str, body: bytes) -> str:
        """Write a message's body under a name unless it exists; return its key with the prefix."""
        self.put_if_absent(f"bodies/{name}", body)
        return f"{self._prefix}bodies/{name}"

    def read(self, bucket: str, key: str) -> bytes:
        """Return a message's body, from whichever bucket its sender has put it in.

        Raises TooLong if it cannot be a line of a batch.
        """
        with _queue_errors():
            return _read_bounded(S3Blobs(bucket, self._client), key, self._max_message_bytes)


def _read_bounded(blobs: S3Blobs, key: str, max_bytes: int) -> bytes:
    found = bytearray()
    # The connection of an object that is not read to its end is closed with the generator.
    with closing(blobs.read(key)) as pieces:
        for piece in pieces:
            found += piece
            if len(found) > max_bytes:
                raise ObjectTooLarge(f"{blobs.url(key)} is longer than {max_bytes:,} bytes")
    return bytes(found)


@contextmanager
def _queue_errors() -> Iterator[None]:
    """Raise a bucket's errors as those of a queue: callers handle the errors of both alike."""
    try:
        yield
    except BlobError as error:
        if error.retryable:
            raise StoreUnavailable(str(error)) from None
        raise QueueRefused(str(error)) from None
