"""Results that are put into a bucket, with a pointer to them in the job's output."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson

from handler import limits
from handler.blobs import BlobError, BlobStore, BlobUnsupported
from handler.bucket import Bucket, open_bucket, read_s3_config
from handler.errors import ResultNotKept
from handler.outbound_targets import OutboundPolicy

# As of RunPod's SDK, and the longest that a presigned address can be valid.
LINK_EXPIRY_S = 7 * 24 * 3600
# Left free in what the platform takes: the pointer comes behind what was streamed before.
POINTER_BYTES = 100_000
# For an upload, its wait for a thread included.
_LIMIT_S = 120.0
_UPLOAD_THREADS = 8
# Longer than any result; the server of a job's bucket may send anything.
_MAX_STORED_BYTES = 32_000_000
# Clients kept for buckets that jobs have brought.
_MOST_OPEN = 8
# How local jobs are called, one like the other; what counts is the last one's result.
_LOCAL = {"", "local_test"}

_ANY_TARGET = OutboundPolicy()
_NO_KEY = re.compile(r"[^A-Za-z0-9._-]")
_TOLD = ("id", "object", "model", "usage", "warnings")
_TOLD_OF_CHOICES = ("index", "finish_reason", "stop_reason")


class ResultStore:
    """Knows where results go, and takes them there on a few threads of its own.

    A job's own bucket takes any result of it; the `default` one takes those above `max_bytes`, or
    above what the platform takes, by its `sizes`. `look` makes the blobs of a bucket. `targets`
    limits where a job's own bucket may be. Owned by the event loop, but for the open buckets, which
    belong to whichever thread has the lock.
    """

    def __init__(
        self,
        default: Bucket | None = None,
        max_bytes: int | None = None,
        *,
        sizes: limits.PayloadLimits | None = None,
        look: Callable[[Bucket], BlobStore] = open_bucket,
        limit_s: float = _LIMIT_S,
        targets: OutboundPolicy = _ANY_TARGET,
    ) -> None:
        self._default = default
        self._max_bytes = max_bytes
        self.sizes = sizes or limits.PayloadLimits()
        self._look = look
        self._limit_s = limit_s
        self._targets = targets
        self._threads = ThreadPoolExecutor(_UPLOAD_THREADS, "result")
        self._lock = threading.Lock()
        self._open: dict[Bucket, BlobStore] = {}

    def delivery(self, job: Mapping[str, Any], *, openai: bool = False) -> ResultDelivery:
        """Return how a job's result is to be handed over.

        The client of an `openai` call would not follow a pointer, so that it gets one only where it
        asks for it, or would get nothing else. Raises InvalidRequest.
        """
        job_id = str(job.get("id") or "")
        if (given := job.get("s3Config")) is not None:
            return ResultDelivery(self, job_id, read_s3_config(given, self._targets), -1)
        limit = self.sizes.result(job_id) - POINTER_BYTES
        if self._max_bytes is not None and not openai:
            limit = min(limit, self._max_bytes)
        return ResultDelivery(self, job_id, self._default, limit)

    async def put(self, job_id: str, bucket: Bucket, body: bytes, output: Any) -> dict[str, Any]:
        """Put a result into a bucket and return the pointer to it.

        The first result of a job stays: where one is there already, the pointer tells of that.

        Raises:
            ResultNotKept: it is not there, as far as can be known; the sentence tells no secret.
        """
        if not bucket.name:
            # RunPod's SDK has the month for a bucket that was not named.
            bucket = replace(bucket, name=time.strftime("%m-%y"))
        key = bucket.key(f"{_NO_KEY.sub('_', job_id)[:200] or 'local'}.json")
        name = f"s3://{bucket.name}/{key}"
        absent = job_id not in _LOCAL
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_s):
                stored, url = await loop.run_in_executor(
                    self._threads, self._upload, bucket, key, body, absent
                )
            if stored is not None:
                body, output = stored, _read(stored, name)
        except TimeoutError:
            said = f"{name}: it took longer than {self._limit_s:g} s"
        except (BlobError, ValueError) as error:
            # botocore raises the latter for what it cannot send.
            said = bucket.without_secrets(str(error))
        else:
            place = {"bucket": bucket.name, "key": key, "bytes": len(body)}
            return {"result": {"url": url, **place, "expires_s": LINK_EXPIRY_S}, **_summary(output)}
        raise ResultNotKept(f"the result could not be put into the bucket: {said}")

    def _upload(
        self, bucket: Bucket, key: str, body: bytes, absent: bool
    ) -> tuple[bytes | None, str]:
        """Return what was there before instead, if anything was, and the address."""
        blobs = self._blobs(bucket)
        try:
            written = blobs.write(key, body, absent=absent)
        except BlobUnsupported:
            # Then a second attempt replaces what the first one has written.
            written = blobs.write(key, body)
        return None if written else _bounded(blobs, key), blobs.link(key, LINK_EXPIRY_S)

    def _blobs(self, bucket: Bucket) -> BlobStore:
        # Two clients cannot be made at the same time; boto3 keeps what they share in one place.
        with self._lock:
            blobs = self._open.pop(bucket, None) or self._look(bucket)
            self._open[bucket] = blobs
            if len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]
        return blobs


class ResultDelivery:
    """How one job's result is handed over; owned by the task that runs the job."""

    def __init__(
        self, results: ResultStore, job_id: str, bucket: Bucket | None, limit: int
    ) -> None:
        self._results = results
        self._job_id = job_id
        self._bucket = bucket
        self._limit = limit
        self._size = 0
        self._chunks: list[bytes] = []
        self._last: Any = None

    async def whole(self, output: Any, size: int) -> Any:
        """Return what is sent for an output of `size` bytes: itself, or a pointer to it.

        Raises:
            ResultTooLarge: it cannot be sent, and there is no bucket for it.
            ResultNotKept: the bucket did not take it.
        """
        if self._bucket is None:
            self._results.sizes.check_result(self._job_id, size)
        elif size > self._limit:
            body = orjson.dumps(output)
            return await self._results.put(self._job_id, self._bucket, body, output)
        return output

    def add(self, output: Any, size: int) -> bool:
        """Note an output that is streamed; return whether it is part of the result as it is sent.

        Raises:
            ResultTooLarge: all of them cannot be sent, and there is no bucket for them.
        """
        self._size += size
        if self._bucket is None:
            self._results.sizes.check_result(self._job_id, self._size)
            return True
        self._last = output
        self._chunks.append(orjson.dumps(output))
        return self._size <= self._limit

    async def end(self) -> dict[str, Any] | None:
        """Return the pointer to the list of all outputs, if they do not go without one.

        Raises:
            ResultNotKept: the bucket did not take it.
        """
        if self._bucket is None or self._size <= self._limit:
            return None
        body = b"[%b]" % b",".join(self._chunks)
        return await self._results.put(self._job_id, self._bucket, body, self._last)


def result_pointer(output: Any) -> Mapping[str, Any] | None:
    """Return where a result is, if an output is a pointer to it."""
    if not isinstance(output, Mapping):
        return None
    place = output.get("result")
    return (
        place if isinstance(place, Mapping) and {"url", "bucket", "key"} <= place.keys() else None
    )


def _bounded(blobs: BlobStore, key: str) -> bytes:
    """Return what an earlier attempt has put into a bucket, which is no longer than a result."""
    stored = bytearray()
    for piece in blobs.read(key):
        stored += piece
        if len(stored) > _MAX_STORED_BYTES:
            raise BlobError(f"{key} is there already, and is too long for a result")
    return bytes(stored)


def _read(stored: bytes, name: str) -> Any:
    """Return what an earlier attempt has left; the last of what it streamed."""
    try:
        found = orjson.loads(stored)
    except orjson.JSONDecodeError:
        raise BlobError(f"{name} is there already, and is no result") from None
    return found[-1] if isinstance(found, list) and found else found


def _summary(output: Any) -> dict[str, Any]:
    """Return what can be told of an output without its text, under the same keys."""
    if not isinstance(output, Mapping):
        return {}
    told = {name: output[name] for name in _TOLD if name in output}
    if choices := output.get("choices"):
        told["choices"] = [
            {name: choice[name] for name in _TOLD_OF_CHOICES if name in choice}
            for choice in choices
        ]
    return told
