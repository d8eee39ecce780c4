"""Upload large results to a bucket, and return a pointer to them as the job's output."""

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

from handler.delivery.blobs import BlobError, BlobStore, BlobUnsupported
from handler.delivery.bucket import Bucket, open_bucket, read_s3_config
from handler.delivery.limits import PayloadLimits
from handler.delivery.outbound_targets import OutboundPolicy
from handler.errors import ResultNotKept

# As in RunPod's SDK, and the maximum validity of a presigned URL.
LINK_EXPIRY_S = 7 * 24 * 3600
# Reserved within the platform's limit: the pointer follows the chunks that were streamed.
POINTER_BYTES = 100_000
# Includes the wait for a thread.
_UPLOAD_TIMEOUT_S = 120.0
_UPLOAD_THREADS = 8
# More than any result. The server of a job's own bucket may send anything.
_MAX_STORED_BYTES = 32_000_000
# S3 clients that are kept for the buckets of jobs.
_MAX_OPEN_BUCKETS = 8
# The ids that all local jobs share: a new result replaces the previous one.
_LOCAL_JOB_IDS = {"", "local_test"}

_ANY_TARGET = OutboundPolicy()
_INVALID_KEY_CHARS = re.compile(r"[^A-Za-z0-9._-]")
_SUMMARY_KEYS = ("id", "object", "model", "usage", "warnings")
_CHOICE_SUMMARY_KEYS = ("index", "finish_reason", "stop_reason")


class ResultUploader:
    """Decides whether a result is sent or uploaded, and uploads on a few threads of its own.

    A job's own bucket (`s3Config`) receives every result of that job. The `default` bucket receives
    results above `max_bytes`, or above the platform's limits. `open_bucket` returns the blob store
    of a bucket. `targets` restricts the address of a job's own bucket. Owned by the event loop,
    except the open buckets, which a lock protects.
    """

    def __init__(
        self,
        default: Bucket | None = None,
        max_bytes: int | None = None,
        *,
        limits: PayloadLimits | None = None,
        open_bucket: Callable[[Bucket], BlobStore] = open_bucket,
        upload_timeout_s: float = _UPLOAD_TIMEOUT_S,
        targets: OutboundPolicy = _ANY_TARGET,
    ) -> None:
        self._default = default
        self._max_bytes = max_bytes
        self.limits = limits or PayloadLimits()
        self._open_bucket = open_bucket
        self._upload_timeout_s = upload_timeout_s
        self._targets = targets
        self._threads = ThreadPoolExecutor(_UPLOAD_THREADS, "result")
        self._lock = threading.Lock()
        self._open: dict[Bucket, BlobStore] = {}

    def plan_delivery(self, job: Mapping[str, Any], *, is_openai: bool = False) -> ResultDelivery:
        """Return the delivery of a job's result. Raises InvalidRequest.

        The client of an OpenAI call does not follow pointers. It receives one only if the job has
        an `s3Config`, or if the result exceeds the platform's limit.
        """
        job_id = str(job.get("id") or "")
        if (s3_config := job.get("s3Config")) is not None:
            return ResultDelivery(self, job_id, read_s3_config(s3_config, self._targets), -1)
        limit = self.limits.max_result_bytes(job_id) - POINTER_BYTES
        if self._max_bytes is not None and not is_openai:
            limit = min(limit, self._max_bytes)
        return ResultDelivery(self, job_id, self._default, limit)

    async def upload(self, job_id: str, bucket: Bucket, body: bytes, output: Any) -> dict[str, Any]:
        """Write a result into a bucket and return the pointer to it.

        The first result of a job stays: if the bucket has one already, the pointer describes that.

        Raises:
            ResultNotKept: the upload failed or was not confirmed; the message contains no secret.
        """
        if not bucket.name:
            # RunPod's SDK uses the month as the name of an unnamed bucket.
            bucket = replace(bucket, name=time.strftime("%m-%y"))
        key = bucket.key(f"{_INVALID_KEY_CHARS.sub('_', job_id)[:200] or 'local'}.json")
        name = f"s3://{bucket.name}/{key}"
        only_if_absent = job_id not in _LOCAL_JOB_IDS
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._upload_timeout_s):
                stored, url = await loop.run_in_executor(
                    self._threads, self._upload, bucket, key, body, only_if_absent
                )
            if stored is not None:
                body, output = stored, _parse_stored(stored, name)
        except TimeoutError:
            reason = f"{name}: it took longer than {self._upload_timeout_s:g} s"
        except (BlobError, ValueError) as error:
            # botocore raises ValueError for requests that it cannot send.
            reason = bucket.without_secrets(str(error))
        else:
            location = {"bucket": bucket.name, "key": key, "bytes": len(body)}
            return {
                "result": {"url": url, **location, "expires_s": LINK_EXPIRY_S},
                **_summarize(output),
            }
        raise ResultNotKept(f"the result could not be put into the bucket: {reason}")

    def _upload(
        self, bucket: Bucket, key: str, body: bytes, only_if_absent: bool
    ) -> tuple[bytes | None, str]:
        """Write a blob; return the blob that existed already, or None, and the URL."""
        blobs = self._get_blobs(bucket)
        try:
            written = blobs.write(key, body, only_if_absent=only_if_absent)
        except BlobUnsupported:
            # The server has no conditional writes: a second attempt replaces the first result.
            written = blobs.write(key, body)
        return None if written else _read_stored(blobs, key), blobs.link(key, LINK_EXPIRY_S)

    def _get_blobs(self, bucket: Bucket) -> BlobStore:
        # boto3 cannot create two clients at the same time, because they share one default session.
        with self._lock:
            blobs = self._open.pop(bucket, None) or self._open_bucket(bucket)
            self._open[bucket] = blobs
            if len(self._open) > _MAX_OPEN_BUCKETS:
                del self._open[next(iter(self._open))]
        return blobs


class ResultDelivery:
    """Delivers one job's result: sends it, or uploads it. Owned by the task that runs the job."""

    def __init__(
        self, results: ResultUploader, job_id: str, bucket: Bucket | None, limit: int
    ) -> None:
        self._results = results
        self._job_id = job_id
        self._bucket = bucket
        self._limit = limit
        self._size_bytes = 0
        self._outputs: list[bytes] = []
        self._last_output: Any = None

    async def deliver(self, output: Any, size: int) -> Any:
        """Return what to send for an output of `size` bytes: the output itself or a pointer to it.

        Raises:
            ResultTooLarge: it exceeds the limit, and there is no bucket for it.
            ResultNotKept: the upload failed.
        """
        if self._bucket is None:
            self._results.limits.check_result(self._job_id, size)
        elif size > self._limit:
            body = orjson.dumps(output)
            return await self._results.upload(self._job_id, self._bucket, body, output)
        return output

    def add_chunk(self, output: Any, size: int) -> bool:
        """Record a streamed output; return whether it is part of the result that is sent.

        Raises:
            ResultTooLarge: the outputs together exceed the limit, and there is no bucket for them.
        """
        self._size_bytes += size
        if self._bucket is None:
            self._results.limits.check_result(self._job_id, self._size_bytes)
            return True
        self._last_output = output
        self._outputs.append(orjson.dumps(output))
        return self._size_bytes <= self._limit

    async def finish(self) -> dict[str, Any] | None:
        """Upload the list of all outputs if it is too large; return the pointer to it, or None.

        Raises:
            ResultNotKept: the upload failed.
        """
        if self._bucket is None or self._size_bytes <= self._limit:
            return None
        body = b"[%b]" % b",".join(self._outputs)
        return await self._results.upload(self._job_id, self._bucket, body, self._last_output)


def find_result_pointer(output: Any) -> Mapping[str, Any] | None:
    """Return the location of an uploaded result if an output points to one, or else None."""
    if not isinstance(output, Mapping):
        return None
    location = output.get("result")
    if isinstance(location, Mapping) and {"url", "bucket", "key"} <= location.keys():
        return location
    return None


def _read_stored(blobs: BlobStore, key: str) -> bytes:
    """Return the result that an earlier attempt uploaded. Raises BlobError if it is too long."""
    stored = bytearray()
    for piece in blobs.read(key):
        stored += piece
        if len(stored) > _MAX_STORED_BYTES:
            raise BlobError(f"{key} is there already, and is too long for a result")
    return bytes(stored)


def _parse_stored(stored: bytes, name: str) -> Any:
    """Return the output of an earlier attempt, or the last one of a streamed list."""
    try:
        result = orjson.loads(stored)
    except orjson.JSONDecodeError:
        raise BlobError(f"{name} is there already, and is no result") from None
    return result[-1] if isinstance(result, list) and result else result


def _summarize(output: Any) -> dict[str, Any]:
    """Return the fields of an output that contain no text, under the same keys."""
    if not isinstance(output, Mapping):
        return {}
    summary = {name: output[name] for name in _SUMMARY_KEYS if name in output}
    # The output of an earlier attempt comes from a bucket, where others may write.
    choices = output.get("choices")
    if isinstance(choices, list) and choices:
        summary["choices"] = [
            {name: choice[name] for name in _CHOICE_SUMMARY_KEYS if name in choice}
            for choice in choices
            if isinstance(choice, Mapping)
        ]
    return summary
