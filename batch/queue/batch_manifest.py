"""What a batch in a queue consists of, for whoever collects it."""

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
    """Which input was sent to which queue."""

    digest: str
    lines: int
    queue_url: str
    format: int = _FORMAT


class BatchManifest:
    """A batch's input in the bucket: a header and the lines' ids, in their order.

    Written before anything is sent, once. `sent` is written beside it now and then, so that who
    goes on does not begin at the first line. All calls block, and raise as those of a place.
    """

    def __init__(self, place: ResultBucket, batch: str) -> None:
        self._place = place
        self._key = f"{batch}/manifest.jsonl"
        self._sent_key = f"{batch}/sent.json"
        self.url = place.url(self._key)

    def begin(self, header: BatchHeader, ids: Iterator[str]) -> bool:
        """Write a manifest where there is none; return whether it was."""

        def encode() -> Iterator[bytes]:
            yield orjson.dumps(asdict(header)) + b"\n"
            for each in ids:
                yield orjson.dumps(each) + b"\n"

        return self._place.upload_if_absent(self._key, encode())

    def header(self) -> BatchHeader | None:
        """Return a batch's header, or None where there is no such batch."""
        first = self._place.read_first_chunk(self._key)
        if first is None:
            return None
        try:
            return BatchHeader(**orjson.loads(first.split(b"\n", 1)[0]))
        except (TypeError, ValueError):
            raise self._damaged() from None

    def ids(self) -> Iterator[str]:
        """Yield the lines' ids. Raises QueueRefused where the manifest is damaged."""
        rest = b""
        has_header = False
        for piece in self._place.read_chunks(self._key):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _MAX_ID_BYTES:
                raise self._damaged()
            for line in lines:
                if has_header:
                    yield self._id(line)
                has_header = True

    def _id(self, line: bytes) -> str:
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, str):
            raise self._damaged()
        return found

    def _damaged(self) -> QueueRefused:
        return QueueRefused(f"{self.url} is not the manifest of a batch")

    @property
    def sent(self) -> int:
        """How many lines are known to be in the queue."""
        found = self._place.find(self._sent_key, _MAX_NOTE_BYTES)
        try:
            return 0 if found is None else int(orjson.loads(found)["sent"])
        except (KeyError, TypeError, ValueError):
            # Sent again, a line is still answered once.
            return 0

    def save_sent_lines(self, lines: int) -> None:
        """Take down that so many lines are in the queue."""
        self._place.put(self._sent_key, orjson.dumps({"sent": lines}))
