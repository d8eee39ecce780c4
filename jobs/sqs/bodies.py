"""Messages too long for a queue: their bodies in a bucket, pointers to them in the queue.

As Amazon's extended clients for Java and Python do it, so that either side may be one of theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from jobs.model import Json
from jobs.sqs.errors import QueueRefused

# From here on Amazon's clients use the bucket; queues of before August 2025 take no more.
INLINE_BYTES = 262_144
SIZE = "ExtendedPayloadSize"
# What older clients call it.
SIZES = (SIZE, "SQSLargePayloadSize")
_POINTER = "software.amazon.payloadoffloading.PayloadS3Pointer"
_POINTERS = (_POINTER, "com.amazon.sqs.javamessaging.MessageS3Pointer")
# XML, in which SQS once spoke, has no such characters; JSON can write them otherwise.
_UNSENDABLE = {b"\xef\xbf\xbe": b"\\ufffe", b"\xef\xbf\xbf": b"\\uffff"}


class Bodies(Protocol):
    """A bucket for bodies. All calls block, and raise StoreUnavailable or QueueRefused."""

    @property
    def bucket(self) -> str:
        """Its name."""

    def keep(self, name: str, body: bytes) -> str:
        """Have a body in the bucket, once for each name; return its key."""

    def read(self, bucket: str, key: str) -> bytes:
        """Return a body, from whichever bucket a sender has put it in."""


def sendable(body: Json) -> Json:
    """Return the same JSON in characters that SQS takes."""
    for raw, written in _UNSENDABLE.items():
        body = body.replace(raw, written)
    return body


def entry(body: Json, inline_bytes: int, bodies: Bodies | None) -> tuple[dict[str, Any], int]:
    """Return what a message consists of, and how many bytes it counts.

    A body's name is its hash: sent again it is kept once, and whoever has the pointer a second time
    still finds it. So nothing is removed with a message; the bucket's lifecycle does that.

    Raises:
        QueueRefused: it is too long, and there is no bucket for it.
        StoreUnavailable: the bucket did not take it.
    """
    if len(body) <= inline_bytes:
        return {"MessageBody": body.decode()}, len(body)
    if bodies is None:
        raise QueueRefused(
            f"a message may have {inline_bytes:,} bytes without a bucket, this one has "
            f"{len(body):,}"
        )
    key = bodies.keep(hashlib.sha256(body).hexdigest(), body)
    place = {"s3BucketName": bodies.bucket, "s3Key": key}
    text = orjson.dumps([_POINTER, place]).decode()
    size = str(len(body))
    attributes = {SIZE: {"DataType": "Number", "StringValue": size}}
    counted = len(text) + len(SIZE) + len("Number") + len(size)
    return {"MessageBody": text, "MessageAttributes": attributes}, counted


def body_of(text: str, attributes: Mapping[str, Any], bodies: Bodies | None) -> Json:
    """Return a message's body, from its bucket where it is a pointer.

    Raises:
        QueueRefused: it is a pointer that leads nowhere.
        StoreUnavailable: the bucket does not answer.
    """
    if not any(name in attributes for name in SIZES):
        return text.encode()
    try:
        kind, place = orjson.loads(text)
        bucket, key = place["s3BucketName"], place["s3Key"]
        known = kind in _POINTERS and isinstance(bucket, str) and isinstance(key, str)
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise QueueRefused(f"a message with {SIZE} is no pointer: {text[:200]!r}")
    if bodies is None:
        raise QueueRefused("a message's body is in a bucket, and no bucket is given")
    return bodies.read(bucket, key)
