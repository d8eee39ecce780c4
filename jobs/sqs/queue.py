"""A job queue on SQS, or on a server with the same API."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from jobs.errors import JobsError
from jobs.model import Job, JobStatus, Json, NewJob
from jobs.ports import QueueStats
from jobs.sqs.attributes import QueueAttributes, count_messages, fetch_attributes, fetch_queue_url
from jobs.sqs.bodies import BodyStore, build_entry, escape_unsendable
from jobs.sqs.calls import MAX_ENTRIES, CallBatcher, SqsCaller
from jobs.sqs.errors import LeaseExpired
from jobs.sqs.leases import Lease, SqsLeases
from jobs.sqs.message import RECEIVE_ATTRIBUTES, to_job

logger = logging.getLogger(__name__)

# The longest wait for a message that SQS allows.
_MAX_POLL_S = 20
_MAX_RETRY_DELAY_S = 900.0


class JobResultStore(Protocol):
    """Stores the results of jobs, which SQS does not."""

    def keep(self, ended: Job) -> None:
        """Store a job's output or error durably, unless the job already has a result.

        Blocks, and is called from several threads. Raises StoreUnavailable, QueueRefused.
        """


class SqsQueue:
    """Implements `JobQueue` on SQS; an endpoint is the URL of a queue.

    SQS guarantees less than the protocol requires:

    - A message may be delivered twice, even while it is leased, and to two workers under the same
      attempt. So a job's result is first stored in `results`, which accepts only the first one, and
      then the message is deleted. An attempt is fenced by its receipt handle and by this process's
      clock, because SQS may accept an expired handle.
    - Every receive counts as a lost attempt, even if the job was returned with `nack`. After the
      queue's `maxReceiveCount` SQS moves the message to the dead-letter queue, at the next receive.
    - The order and the counts are approximate, and ended jobs are not stored.
    - A message contains only a job's input: no policy, no webhook, no `extra`.

    In a FIFO queue each input is a message group of its own, so that no message blocks another. The
    same input sent twice within five minutes is one message. Used by one event loop; the calls of
    boto3 run on threads.
    """

    def __init__(
        self,
        client: Any,
        results: JobResultStore | None = None,
        bodies: BodyStore | None = None,
        *,
        retry_delay_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a boto3 client; `retry_delay_s` applies after a first loss and doubles each time."""
        self._calls = SqsCaller(client)
        self._results = results
        self._bodies = bodies
        self._retry_delay_s = retry_delay_s
        self._monotonic = monotonic
        self._leases = SqsLeases(monotonic)
        self._attributes: dict[str, QueueAttributes] = {}
        self._batchers: dict[tuple[str, str], CallBatcher] = {}

    async def get_attributes(self, endpoint: str) -> QueueAttributes:
        """Return the attributes of a queue, which are fetched once.

        Raises QueueRefused, StoreUnavailable.
        """
        if endpoint not in self._attributes:
            self._attributes[endpoint] = await fetch_attributes(self._calls, endpoint)
        return self._attributes[endpoint]

    async def enqueue(self, new: NewJob) -> Job:
        """Send a job's input. Raises QueueRefused, StoreUnavailable."""
        if new != NewJob(endpoint=new.endpoint, input=new.input):
            raise ValueError("a message of SQS carries a job's input and nothing else")
        attributes = await self.get_attributes(new.endpoint)
        body = escape_unsendable(new.input)
        build = partial(build_entry, body, attributes.max_inline_bytes, self._bodies)
        # Only a long body is written to a bucket, which blocks.
        is_inline = len(body) <= attributes.max_inline_bytes
        message, size_bytes = build() if is_inline else await self._calls.run(build)
        if attributes.is_fifo:
            name = hashlib.sha256(body).hexdigest()
            message |= {"MessageGroupId": name, "MessageDeduplicationId": name}
        batcher = self._get_batcher("send_message_batch", new.endpoint)
        sent = await batcher.call(size_bytes, **message)
        now = time.time()
        return Job(
            id=sent["MessageId"],
            endpoint=new.endpoint,
            input=new.input,
            created_at=now,
            queued_at=now,
        )

    async def receive(
        self,
        endpoint: str,
        worker_id: str,
        *,
        lease_s: float,
        wait_s: float = 0.0,
        limit: int = 1,
        skip_lost: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` jobs, at most ten, waiting for one in whole seconds.

        A message that `skip_lost` leaves out is leased all the same: no worker can receive it for
        `lease_s`. The same holds for messages in transit when this call is cancelled.

        Raises QueueRefused, StoreUnavailable.
        """
        deadline = self._monotonic() + wait_s
        while True:
            remaining_s = max(0, math.ceil(deadline - self._monotonic()))
            answer = await self._calls.call(
                "receive_message",
                endpoint,
                QueueUrl=endpoint,
                MaxNumberOfMessages=min(limit, MAX_ENTRIES),
                WaitTimeSeconds=min(remaining_s, _MAX_POLL_S),
                VisibilityTimeout=_whole_seconds(lease_s),
                **RECEIVE_ATTRIBUTES,
            )
            expires_at = self._monotonic() + lease_s
            received = [
                await self._lease(endpoint, worker_id, message, expires_at, skip_lost=skip_lost)
                for message in answer.get("Messages", ())
            ]
            jobs = [job for job in received if job is not None]
            if jobs or self._monotonic() >= deadline:
                return jobs

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend a lease so that it expires no earlier than `lease_s` from now.

        Also returns False if SQS refuses: its longest lease is twelve hours. Raises QueueRefused,
        StoreUnavailable.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        expires_at = self._monotonic() + lease_s
        if expires_at <= lease.expires_at:
            return True
        try:
            await self._change_visibility(lease, lease_s)
        except LeaseExpired:
            self._leases.remove(lease)
            return False
        lease.expires_at = max(lease.expires_at, expires_at)
        return True

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """Store a job's result and then delete its message.

        Raises:
            StoreUnavailable, QueueRefused: the result is not stored or the message not deleted; the
                lease is still valid.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        if output is not None or error is not None:
            if self._results is None:
                raise ValueError("SQS does not store results, and `results` is None")
            ended = lease.job.replace(
                status=JobStatus.COMPLETED if error is None else JobStatus.FAILED,
                ended_at=time.time(),
                output=output,
                error=error,
            )
            await self._calls.run(partial(self._results.keep, ended))
        try:
            batcher = self._get_batcher("delete_message_batch", lease.job.endpoint)
            await batcher.call(ReceiptHandle=lease.receipt_handle)
        except LeaseExpired:
            self._leases.remove(lease)
            return False
        self._leases.remove(lease)
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Return a job to the queue: at once, or with a `reason` after a delay.

        Raises QueueRefused, StoreUnavailable: the job returns when its lease expires.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        delay_s = 0.0
        if reason is not None:
            delay_s = min(self._retry_delay_s * 2.0 ** min(attempt - 1, 20), _MAX_RETRY_DELAY_S)
            fields = {"job_id": job_id}
            logger.warning("job %s was lost and waits again: %s", job_id, reason, extra=fields)
        self._leases.remove(lease)
        try:
            await self._change_visibility(lease, delay_s)
        except LeaseExpired:
            return False
        return True

    async def stats(self, endpoint: str) -> QueueStats:
        """Count waiting, leased and dead jobs, approximately.

        Raises QueueRefused, StoreUnavailable.
        """
        waiting, leased = await count_messages(self._calls, endpoint)
        counts = {JobStatus.IN_QUEUE: waiting, JobStatus.IN_PROGRESS: leased}
        attributes = await self.get_attributes(endpoint)
        if attributes.dead_letter_arn is not None:
            queue_url = await fetch_queue_url(self._calls, attributes.dead_letter_arn)
            counts[JobStatus.FAILED] = sum(await count_messages(self._calls, queue_url))
        return QueueStats(counts=counts)

    def close(self) -> None:
        """Let the threads end after their current calls."""
        self._calls.close()

    async def _lease(
        self,
        endpoint: str,
        worker_id: str,
        message: Mapping[str, Any],
        expires_at: float,
        *,
        skip_lost: bool,
    ) -> Job | None:
        """Return the job of a message; None if it is leased here, skipped or unreadable."""
        job_id, receipt_handle = message["MessageId"], message["ReceiptHandle"]
        if self._leases.renew(job_id, receipt_handle, expires_at):
            # The message was delivered twice; only the later handle is valid.
            return None
        if skip_lost and self._leases.has_lost(worker_id, job_id):
            return None
        try:
            job = await self._calls.run(partial(to_job, endpoint, worker_id, message, self._bodies))
        except JobsError as error:
            # SQS delivers it again, and after too many receives moves it to the dead-letter queue.
            fields = {"job_id": job_id}
            logger.error("message %s cannot be read: %s", job_id, error, extra=fields)
            return None
        self._leases.add(Lease(job, receipt_handle, expires_at))
        return job

    async def _change_visibility(self, lease: Lease, seconds: float) -> None:
        batcher = self._get_batcher("change_message_visibility_batch", lease.job.endpoint)
        await batcher.call(
            ReceiptHandle=lease.receipt_handle,
            VisibilityTimeout=_whole_seconds(seconds) if seconds else 0,
        )

    def _get_batcher(self, action: str, endpoint: str) -> CallBatcher:
        key = (action, endpoint)
        if key not in self._batchers:
            self._batchers[key] = CallBatcher(self._calls, action, endpoint)
        return self._batchers[key]


def _whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, at least one, as SQS requires."""
    return max(1, math.ceil(seconds))
