"""Requests to SQS, off the event loop and ten entries at a time."""

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
from jobs.sqs.errors import QueueRefused, failure, told

T = TypeVar("T")

# SQS allows no more in one request.
MAX_ENTRIES = 10
MAX_BYTES = 1 << 20
# Requests of one kind at the same time: what comes meanwhile is gathered.
_AT_ONCE = 4
# The three kinds that are gathered, a long poll, and what is read from buckets.
THREADS = 16
_REGION = re.compile(r"\b([a-z]{2}(?:-[a-z]+)+-\d)\.")


def sqs_client(queue_url: str, **given: Any) -> Any:
    """Return a client with the usual chain of credentials for the queue's region or server.

    botocore tries again by itself what may pass, five times in all. Raises QueueRefused.
    """
    parts = urlsplit(queue_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(parts.path) < 2:
        raise QueueRefused(f"{queue_url!r} is not the URL of a queue")
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=THREADS,
        retries={"mode": "standard", "max_attempts": 5},
    )
    if parts.hostname.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        if (found := _REGION.search(parts.hostname)) is not None:
            given.setdefault("region_name", found[1])
    else:
        given.setdefault("endpoint_url", f"{parts.scheme}://{parts.netloc}")
    with told(queue_url):
        return boto3.client("sqs", config=config, **given)


class Calls:
    """boto3's blocking calls on threads of their own; used by one event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS, "sqs")

    async def ask(self, action: str, queue_url: str, **given: Any) -> dict[str, Any]:
        """Make one request. Raises QueueRefused, LeaseOver, StoreUnavailable."""

        def ask() -> dict[str, Any]:
            with told(queue_url):
                answer: dict[str, Any] = getattr(self._client, action)(**given)
                return answer

        return await self.run(ask)

    async def run(self, work: Callable[[], T]) -> T:
        """Run what blocks on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let the threads end when they have done what they are at."""
        self._threads.shutdown(wait=False)


class _Waiting(NamedTuple):
    entry: dict[str, Any]
    size: int
    answer: asyncio.Future[dict[str, Any]]


class Gathered:
    """One kind of request to one queue, whose entries travel together: ten cost what one costs.

    An entry that comes while there is nothing else to send goes alone and at once. Bounded by those
    who wait for an answer. Used by one event loop.
    """

    def __init__(self, calls: Calls, action: str, queue_url: str) -> None:
        self._calls = calls
        self._action = action
        self._queue_url = queue_url
        self._waiting: deque[_Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def ask(self, size: int = 0, **entry: Any) -> dict[str, Any]:
        """Send an entry of so many bytes. Raises QueueRefused, LeaseOver, StoreUnavailable."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(entry, size, answer))
        if len(self._senders) < _AT_ONCE:
            sender = asyncio.create_task(self._send())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    async def _send(self) -> None:
        while together := [*self._next()]:
            entries = [{"Id": str(at), **each.entry} for at, each in enumerate(together)]
            said: list[dict[str, Any] | Exception] = []
            try:
                answer = await self._calls.ask(
                    self._action, self._queue_url, QueueUrl=self._queue_url, Entries=entries
                )
                by_id = {each["Id"]: each for each in answer.get("Successful", ())}
                by_id |= {
                    each["Id"]: failure(self._queue_url, each, 400 if each["SenderFault"] else 500)
                    for each in answer.get("Failed", ())
                }
                lost = StoreUnavailable(f"{self._queue_url}: nothing was said of a message")
                said = [by_id.get(each["Id"], lost) for each in entries]
            except Exception as error:
                # Each of those who wait is told, whatever it was.
                said = [error] * len(together)
            for each, of_it in zip(together, said, strict=True):
                if each.answer.done():
                    continue
                if isinstance(of_it, Exception):
                    each.answer.set_exception(of_it)
                else:
                    each.answer.set_result(of_it)

    def _next(self) -> Iterator[_Waiting]:
        size = 0
        for _ in range(MAX_ENTRIES):
            if not self._waiting or (size and size + self._waiting[0].size > MAX_BYTES):
                return
            size += self._waiting[0].size
            yield self._waiting.popleft()
