"""The S3 bucket of submitted batches: their manifests, long messages and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from batch.output.destination import is_blob_url
from handler.delivery.blobs import BlobError, BlobInfo, BlobNotFound
from handler.delivery.blobs.s3 import S3Blobs, s3_client
from jobs import StoreUnavailable
from jobs.sqs.errors import QueueRefused

_PROBE_KEY = ".writable"
# Maximum sizes of objects that are read into memory. An answer has at most the tokens of a context,
# with their log probabilities. A message body is one line, which MAX_BODY_MB limits, 10 MB by
# default.
MAX_ANSWER_BYTES = 64_000_000
MAX_MESSAGE_BYTES = 10_000_000


class ObjectTooLarge(QueueRefused):
    """An object is longer than its kind can be; it was not read to its end."""


class ResultBucket:
    """A bucket and a prefix in it. All calls block, and may be made from several threads.

    Calls raise StoreUnavailable for temporary errors and QueueRefused for permanent ones. Others
    may write to the bucket and the queue too, so every read is bounded: `max_message_bytes` is the
    limit of a message body.
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
        """Return the bucket of an address s3://BUCKET/PREFIX. Raises ValueError."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not is_blob_url(url) or not bucket:
            raise ValueError(f"{url} must be s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = prefix.strip("/")
        with _queue_errors():
            folder = f"{prefix}/" if prefix else ""
            return cls(bucket, folder, client or s3_client(), max_message_bytes)

    def url(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return f"s3://{self.bucket}/{self._prefix}{key}"

    def check(self) -> None:
        """Check that the bucket can be written and read, before any work is done."""
        with _queue_errors():
            self._blobs.write(f"{self._prefix}{_PROBE_KEY}", b"", only_if_absent=True)
            for _ in self._blobs.read(f"{self._prefix}{_PROBE_KEY}"):
                pass

    def find(self, key: str, max_bytes: int = MAX_ANSWER_BYTES) -> bytes | None:
        """Return an object, or None if absent. Raises ObjectTooLarge over `max_bytes`."""
        with _queue_errors():
            try:
                return _read_bounded(self._blobs, f"{self._prefix}{key}", max_bytes)
            except BlobNotFound:
                return None

    def read_first_chunk(self, key: str) -> bytes | None:
        """Return the first chunk of an object, or None if it does not exist."""
        with _queue_errors():
            try:
                return next(iter(self._blobs.read(f"{self._prefix}{key}")), b"")
            except BlobNotFound:
                return None

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """Yield an object in chunks."""
        with _queue_errors():
            yield from self._blobs.read(f"{self._prefix}{key}")

    def put(self, key: str, body: bytes) -> None:
        """Write an object, replacing an existing one."""
        with _queue_errors():
            self._blobs.write(f"{self._prefix}{key}", body)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Write an object unless the key exists; return whether it was written."""
        with _queue_errors():
            return self._blobs.write(f"{self._prefix}{key}", body, only_if_absent=True)

    def upload_if_absent(self, key: str, chunks: Iterable[bytes]) -> bool:
        """Do the same as `put_if_absent` for an object that is too large for memory."""
        with _queue_errors():
            return self._blobs.upload(f"{self._prefix}{key}", chunks, only_if_absent=True)

    def list(self, key: str) -> Iterator[BlobInfo]:
        """Yield the objects whose keys start with `key`. The yielded keys include the prefix."""
        with _queue_errors():
            yield from self._blobs.list(f"{self._prefix}{key}")

    def keep(self, name: str, body: bytes) -> str:
        """Write a message body under a name unless it exists; return its key with the prefix."""
        self.put_if_absent(f"bodies/{name}", body)
        return f"{self._prefix}bodies/{name}"

    def read(self, bucket: str, key: str) -> bytes:
        """Return a message body from the bucket that its sender chose.

        Raises ObjectTooLarge if it is longer than a line of a batch may be.
        """
        with _queue_errors():
            return _read_bounded(S3Blobs(bucket, self._client), key, self._max_message_bytes)


def _read_bounded(blobs: S3Blobs, key: str, max_bytes: int) -> bytes:
    content = bytearray()
    # Closing the generator closes the connection of an object that is not read to its end.
    with closing(blobs.read(key)) as chunks:
        for chunk in chunks:
            content += chunk
            if len(content) > max_bytes:
                raise ObjectTooLarge(f"{blobs.url(key)} is longer than {max_bytes:,} bytes")
    return bytes(content)


@contextmanager
def _queue_errors() -> Iterator[None]:
    """Convert errors of the bucket to those of a queue, so that callers handle both alike."""
    try:
        yield
    except BlobError as error:
        if error.retryable:
            raise StoreUnavailable(str(error)) from None
        raise QueueRefused(str(error)) from None
