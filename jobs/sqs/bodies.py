"""Message bodies that are too long for a queue: kept in a bucket, with a pointer in the queue.

The format is that of Amazon's extended clients for Java and Python, so that they can send to this
program and receive from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from jobs.model import Json
from jobs.sqs.errors import QueueRefused

# Amazon's clients store longer bodies in the bucket. Queues created before August 2025 refuse them.
MAX_INLINE_BYTES = 262_144
SIZE_ATTRIBUTE = "ExtendedPayloadSize"
# The current name of the attribute, and the name in older clients.
SIZE_ATTRIBUTES = (SIZE_ATTRIBUTE, "SQSLargePayloadSize")
_POINTER = "software.amazon.payloadoffloading.PayloadS3Pointer"
_POINTERS = (_POINTER, "com.amazon.sqs.javamessaging.MessageS3Pointer")
# SQS refuses these characters, which XML does not allow. JSON can escape them.
_UNSENDABLE = {b"\xef\xbf\xbe": b"\\ufffe", b"\xef\xbf\xbf": b"\\uffff"}


class BodyStore(Protocol):
    """A bucket of message bodies. All calls block, and raise StoreUnavailable or QueueRefused."""

    @property
    def bucket(self) -> str:
        """The name of the bucket."""

    def keep(self, name: str, body: bytes) -> str:
        """Store a body under a name, unless the name exists, and return its key."""

    def read(self, bucket: str, key: str) -> bytes:
        """Return a body from the bucket that the sender has stored it in."""


def escape_unsendable(body: Json) -> Json:
    """Escape the characters in a JSON text that SQS refuses."""
    for raw, escaped in _UNSENDABLE.items():
        body = body.replace(raw, escaped)
    return body


def build_entry(
    body: Json, max_inline_bytes: int, bodies: BodyStore | None
) -> tuple[dict[str, Any], int]:
    """Return the fields of a message for a body, and how many bytes SQS counts for it.

    A body in the bucket is named by its hash, so a body that is sent again is stored once, and a
    message that is delivered again still finds it. Therefore deleting a message does not delete its
    body; the bucket's lifecycle rules do.

    Raises:
        QueueRefused: the body is too long, and there is no bucket.
        StoreUnavailable: the bucket refused the body.
    """
    if len(body) <= max_inline_bytes:
        return {"MessageBody": body.decode()}, len(body)
    if bodies is None:
        raise QueueRefused(
            f"a message may have {max_inline_bytes:,} bytes without a bucket, this one has "
            f"{len(body):,}"
        )
    key = bodies.keep(hashlib.sha256(body).hexdigest(), body)
    location = {"s3BucketName": bodies.bucket, "s3Key": key}
    text = orjson.dumps([_POINTER, location]).decode()
    size = str(len(body))
    attributes = {SIZE_ATTRIBUTE: {"DataType": "Number", "StringValue": size}}
    counted_bytes = len(text) + len(SIZE_ATTRIBUTE) + len("Number") + len(size)
    return {"MessageBody": text, "MessageAttributes": attributes}, counted_bytes


def read_body(text: str, attributes: Mapping[str, Any], bodies: BodyStore | None) -> Json:
    """Return the body of a message; a pointer is resolved by reading the bucket.

    Raises:
        QueueRefused: the pointer is invalid, its object is missing, or there is no bucket.
        StoreUnavailable: the bucket does not answer.
    """
    if not any(name in attributes for name in SIZE_ATTRIBUTES):
        return text.encode()
    try:
        kind, location = orjson.loads(text)
        bucket, key = location["s3BucketName"], location["s3Key"]
        is_valid = kind in _POINTERS and isinstance(bucket, str) and isinstance(key, str)
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise QueueRefused(f"a message with {SIZE_ATTRIBUTE} is no pointer: {text[:200]!r}")
    if bodies is None:
        raise QueueRefused("a message's body is in a bucket, and no bucket is given")
    return bodies.read(bucket, key)
