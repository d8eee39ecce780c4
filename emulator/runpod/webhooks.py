"""Webhooks: posts to the URL that a job names, when the job has ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import orjson
from structlog.contextvars import bind_contextvars

from emulator.runpod import job_response
from emulator.runpod.webhook_loops import DEPTH_HEADER, depth_of
from handler.outbound_targets import OutboundPolicy, TargetRefused
from jobs import Job, JobStore
from jobs.failpoints import failpoint

if TYPE_CHECKING:
    from httpx2 import AsyncClient

logger = logging.getLogger(__name__)

# Concurrent posts; the others wait.
_AT_ONCE = 16
_ANY_TARGET = OutboundPolicy()


class Webhooks:
    """Posts ended jobs to their webhooks, a few times each, until one answers 200.

    Each is delivered at least once: the store knows which were, and after a restart the others are
    sent again. Only the status of an answer is used: it may be the answer of an internal server,
    and no client or log gets more of it. Owned by the event loop.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        tries: int,
        pause_s: float,
        answer_s: float = 10.0,
        targets: OutboundPolicy = _ANY_TARGET,
    ) -> None:
        self._store = store
        self._tries = tries
        self._pause_s = pause_s
        self._answer_s = answer_s
        self._targets = targets
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._client: asyncio.Task[AsyncClient] | None = None
        self._closed = False

    def tell(self, job: Job) -> None:
        """Send the webhook of a job that has ended; no-op if the job has none."""
        if job.webhook is None or self._closed:
            return
        task = asyncio.create_task(self._deliver(job, job.webhook))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, job: Job, url: str) -> None:
        bind_contextvars(job_id=job.id)
        failure: str | None = None
        for left in reversed(range(self._tries)):
            async with self._room:
                failure = await self._post(job, url)
            if failure is None or not left:
                break
            logger.warning("the webhook of job %s failed, %s; %d more tries", job.id, failure, left)
            await asyncio.sleep(self._pause_s)
            if not await self._has_same_end(job):
                return
        if failure is not None:
            logger.error("the webhook of job %s was given up: %s", job.id, failure)
        failpoint("webhook-told")
        if await self._has_same_end(job):
            await self._store.mark_webhook_sent(job.id)

    async def _has_same_end(self, job: Job) -> bool:
        """Return whether a job is still as it ended, or was removed.

        A job that runs again (`/retry`) sends its webhook when it ends again.
        """
        current = await self._store.get(job.id)
        return current is None or current.ended_at == job.ended_at

    async def _post(self, job: Job, url: str) -> str | None:
        """Post once; return why it failed, or None."""
        if self._client is None:
            # The package and the certificates take a while, and streams share this loop.
            self._client = asyncio.create_task(
                asyncio.to_thread(_client, self._targets, self._answer_s)
            )
        client = await asyncio.shield(self._client)
        from httpx2 import ConnectError, HTTPError, InvalidURL

        failpoint("webhook-telling")
        body = orjson.dumps(job_response.request(job))
        headers = {"content-type": "application/json", DEPTH_HEADER: str(depth_of(job) + 1)}
        try:
            # The status is enough: the body may be long, and may never end.
            async with (
                asyncio.timeout(self._answer_s),
                client.stream("POST", url, content=body, headers=headers) as response,
            ):
                status = response.status_code
        except TimeoutError:
            return f"it did not answer in {self._answer_s:g} s"
        except TargetRefused as error:
            return str(error)
        except (ConnectError, InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
        except HTTPError as error:
            # The message of a protocol error quotes what the server sent.
            return type(error).__name__
        return None if status == 200 else f"it answered {status}"

    async def close(self) -> None:
        """Stop sending; webhooks that were not delivered are sent after the next start."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await (await self._client).aclose()


def _client(targets: OutboundPolicy, answer_s: float) -> AsyncClient:
    # Most servers send no webhook and need no HTTP client.
    from emulator.runpod.webhook_client import webhook_client

    return webhook_client(targets, answer_s)
