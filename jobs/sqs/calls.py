"""Requests to SQS on threads, with up to ten entries in a batch."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from jobs.errors import StoreUnavailable
from jobs.sqs.errors import QueueRefused, store_errors, to_store_error

T = TypeVar("T")

# Limits of SQS for one request.
MAX_ENTRIES = 10
MAX_BYTES = 1 << 20
# Concurrent requests of one kind; entries that come meanwhile form the next batch.
_MAX_CONCURRENT_BATCHES = 4
# Enough for three kinds of batched requests, a long poll, and reads from buckets.
THREAD_COUNT = 16
_REGION_PATTERN = re.compile(r"\b([a-z]{2}(?:-[a-z]+)+-\d)\.")


def sqs_client(queue_url: str, **options: Any) -> Any:
    """Return a client for the queue's region or server, with boto3's default credentials.

    botocore retries temporary errors, up to five attempts in all. Raises QueueRefused.
    """
    parts = urlsplit(queue_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(parts.path) < 2:
        raise QueueRefused(f"{queue_url!r} is not the URL of a queue")
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=THREAD_COUNT,
        retries={"mode": "standard", "max_attempts": 5},
    )
    if parts.hostname.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        if (match := _REGION_PATTERN.search(parts.hostname)) is not None:
            options.setdefault("region_name", match[1])
    else:
        options.setdefault("endpoint_url", f"{parts.scheme}://{parts.netloc}")
    with store_errors(queue_url):
        return boto3.client("sqs", config=config, **options)


class SqsCaller:
    """Runs boto3's blocking calls on a thread pool; used by one event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREAD_COUNT, "sqs")

    async def call(self, action: str, queue_url: str, **arguments: Any) -> dict[str, Any]:
        """Send one request. Raises QueueRefused, LeaseExpired, StoreUnavailable."""

        def send() -> dict[str, Any]:
            with store_errors(queue_url):
                answer: dict[str, Any] = getattr(self._client, action)(**arguments)
                return answer

        return await self.run(send)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a blocking function on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let the threads end after their current calls."""
        self._threads.shutdown(wait=False)


class _PendingEntry(NamedTuple):
    entry: dict[str, Any]
    size_bytes: int
    answer: asyncio.Future[dict[str, Any]]


class CallBatcher:
    """Batches the entries of one kind of request to one queue: ten cost as much as one.

    An entry is sent at once, alone, unless the maximum of requests is already being sent. The
    number of pending entries is bounded by the callers, who wait for the answers. Used by one event
    loop.
    """

    def __init__(self, calls: SqsCaller, action: str, queue_url: str) -> None:
        self._calls = calls
        self._action = action
        self._queue_url = queue_url
        self._pending: deque[_PendingEntry] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def call(self, size_bytes: int = 0, **entry: Any) -> dict[str, Any]:
        """Send an entry and return its answer.

        Raises QueueRefused, LeaseExpired, StoreUnavailable.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingEntry(entry, size_bytes, answer))
        if len(self._senders) < _MAX_CONCURRENT_BATCHES:
            sender = asyncio.create_task(self._send())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    async def _send(self) -> None:
        while batch := [*self._next_batch()]:
            entries = [{"Id": str(i), **each.entry} for i, each in enumerate(batch)]
            results: list[dict[str, Any] | Exception] = []
            try:
                answer = await self._calls.call(
                    self._action, self._queue_url, QueueUrl=self._queue_url, Entries=entries
                )
                by_id: dict[str, dict[str, Any] | Exception] = {
                    each["Id"]: each for each in answer.get("Successful", ())
                }
                for each in answer.get("Failed", ()):
                    status = 400 if each["SenderFault"] else 500
                    by_id[each["Id"]] = to_store_error(self._queue_url, each, status)
                missing = StoreUnavailable(f"{self._queue_url}: a message has no answer")
                results = [by_id.get(each["Id"], missing) for each in entries]
            except Exception as error:
                # Every caller must get an answer, whatever the error is.
                results = [error] * len(batch)
            for pending, result in zip(batch, results, strict=True):
                if pending.answer.done():
                    continue
                if isinstance(result, Exception):
                    pending.answer.set_exception(result)
                else:
                    pending.answer.set_result(result)

    def _next_batch(self) -> Iterator[_PendingEntry]:
        size_bytes = 0
        for _ in range(MAX_ENTRIES):
            if not self._pending:
                return
            next_bytes = self._pending[0].size_bytes
            if size_bytes and size_bytes + next_bytes > MAX_BYTES:
                return
            size_bytes += next_bytes
            yield self._pending.popleft()
