"""The manifest of a submitted batch: its input and the ids of its lines, for `collect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import orjson

from batch.queue.result_bucket import ResultBucket
from jobs.sqs.errors import QueueRefused

_FORMAT = 1
# An id has up to 512 characters, of up to six bytes each in JSON.
_MAX_ID_BYTES = 8_192
_MAX_NOTE_BYTES = 1_000


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The first line of a manifest: the input and its queue."""

    digest: str
    lines: int
    queue_url: str
    format: int = _FORMAT


class BatchManifest:
    """The manifest of a batch in its bucket: a header and the ids of the lines, in their order.

    It is written once, before the first line is sent. The number of lines sent is saved next to
    it from time to time, so that an interrupted `submit` resumes there. All calls block, and raise
    the errors of ResultBucket.
    """

    def __init__(self, bucket: ResultBucket, batch: str) -> None:
        self._bucket = bucket
        self._key = f"{batch}/manifest.jsonl"
        self._sent_key = f"{batch}/sent.json"
        self.url = bucket.url(self._key)

    def create(self, header: BatchHeader, ids: Iterator[str]) -> bool:
        """Write the manifest unless it exists; return whether it was written."""

        def encode() -> Iterator[bytes]:
            yield orjson.dumps(asdict(header)) + b"\n"
            for each in ids:
                yield orjson.dumps(each) + b"\n"

        return self._bucket.upload_if_absent(self._key, encode())

    def header(self) -> BatchHeader | None:
        """Return the batch's header, or None if there is no such batch."""
        first = self._bucket.read_first_chunk(self._key)
        if first is None:
            return None
        try:
            return BatchHeader(**orjson.loads(first.split(b"\n", 1)[0]))
        except (TypeError, ValueError):
            raise self._damaged_error() from None

    def ids(self) -> Iterator[str]:
        """Yield the ids of the lines. Raises QueueRefused if the manifest is damaged."""
        rest = b""
        has_header = False
        for piece in self._bucket.read_chunks(self._key):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _MAX_ID_BYTES:
                raise self._damaged_error()
            for line in lines:
                if has_header:
                    yield self._parse_id(line)
                has_header = True

    def _parse_id(self, line: bytes) -> str:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, str):
            raise self._damaged_error()
        return value

    def _damaged_error(self) -> QueueRefused:
        return QueueRefused(f"{self.url} is not the manifest of a batch")

    @property
    def sent(self) -> int:
        """The number of lines that are known to be in the queue."""
        value = self._bucket.find(self._sent_key, _MAX_NOTE_BYTES)
        try:
            return 0 if value is None else int(orjson.loads(value)["sent"])
        except (KeyError, TypeError, ValueError):
            # Sending lines again is harmless: each is still answered once.
            return 0

    def save_sent_lines(self, lines: int) -> None:
        """Save the number of lines that are in the queue."""
        self._bucket.put(self._sent_key, orjson.dumps({"sent": lines}))
