"""Sends webhooks: posts a job that has ended to the URL that the job names."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import orjson
from structlog.contextvars import bind_contextvars

from common.failpoints import failpoint
from emulator.runpod import job_response
from emulator.runpod.webhook_loops import DEPTH_HEADER, depth_of
from handler.delivery.outbound_targets import OutboundPolicy, TargetRefused
from jobs import Job, JobStore

if TYPE_CHECKING:
    from httpx2 import AsyncClient

logger = logging.getLogger(__name__)

# The maximum number of concurrent posts.
_MAX_CONCURRENT_POSTS = 16
_ANY_TARGET = OutboundPolicy()


class Webhooks:
    """Posts ended jobs to their webhooks, and retries until one responds with 200.

    Each webhook is delivered at least once: the store records which were sent, and after a restart
    the others are sent again. Only the status of a response is used: it may come from an internal
    server, so no client and no log gets more of it. Owned by the event loop.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        max_attempts: int,
        retry_delay_s: float,
        timeout_s: float = 10.0,
        targets: OutboundPolicy = _ANY_TARGET,
    ) -> None:
        self._store = store
        self._max_attempts = max_attempts
        self._retry_delay_s = retry_delay_s
        self._timeout_s = timeout_s
        self._targets = targets
        self._tasks: set[asyncio.Task[None]] = set()
        self._post_slots = asyncio.Semaphore(_MAX_CONCURRENT_POSTS)
        self._client: asyncio.Task[AsyncClient] | None = None
        self._closed = False

    def send(self, job: Job) -> None:
        """Send the webhook of an ended job. Does nothing if the job has no webhook."""
        if job.webhook is None or self._closed:
            return
        task = asyncio.create_task(self._deliver(job, job.webhook))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, job: Job, url: str) -> None:
        bind_contextvars(job_id=job.id)
        failure: str | None = None
        for remaining in reversed(range(self._max_attempts)):
            async with self._post_slots:
                failure = await self._post(job, url)
            if failure is None or not remaining:
                break
            logger.warning(
                "the webhook of job %s failed, %s; %d more tries", job.id, failure, remaining
            )
            await asyncio.sleep(self._retry_delay_s)
            if not await self._has_same_end(job):
                return
        if failure is not None:
            logger.error("the webhook of job %s was given up: %s", job.id, failure)
        failpoint("webhook-delivered")
        if await self._has_same_end(job):
            await self._store.mark_webhook_sent(job.id)

    async def _has_same_end(self, job: Job) -> bool:
        """Return whether a job has not been retried since it ended; True if it was removed.

        A job that was retried (`/retry`) sends its webhook when it ends again.
        """
        current = await self._store.get(job.id)
        return current is None or current.ended_at == job.ended_at

    async def _post(self, job: Job, url: str) -> str | None:
        """Post once; return why it failed, or None."""
        if self._client is None:
            # Loading the package and the certificates would block the streams on this loop.
            self._client = asyncio.create_task(
                asyncio.to_thread(_create_client, self._targets, self._timeout_s)
            )
        client = await asyncio.shield(self._client)
        from httpx2 import ConnectError, HTTPError, InvalidURL

        failpoint("webhook-sending")
        body = orjson.dumps(job_response.build_request(job))
        headers = {"content-type": "application/json", DEPTH_HEADER: str(depth_of(job) + 1)}
        try:
            # Read only the status: the body may be long or endless.
            async with (
                asyncio.timeout(self._timeout_s),
                client.stream("POST", url, content=body, headers=headers) as response,
            ):
                status = response.status_code
        except TimeoutError:
            return f"it did not answer in {self._timeout_s:g} s"
        except TargetRefused as error:
            return str(error)
        except (ConnectError, InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
        except HTTPError as error:
            # The message of a protocol error quotes what the server sent.
            return type(error).__name__
        return None if status == 200 else f"it answered {status}"

    async def close(self) -> None:
        """Stop sending; the next start sends the webhooks that were not delivered."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await (await self._client).aclose()


def _create_client(targets: OutboundPolicy, timeout_s: float) -> AsyncClient:
    # Most servers send no webhook and need no HTTP client.
    from emulator.runpod.webhook_client import webhook_client

    return webhook_client(targets, timeout_s)
