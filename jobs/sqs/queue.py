"""Jobs in queues of SQS, or of a server that speaks as it does."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from jobs.errors import JobsError
from jobs.model import Job, JobStatus, Json, NewJob
from jobs.ports import Stats
from jobs.sqs.attributes import QueueFacts, counts, facts, url_of
from jobs.sqs.bodies import Bodies, entry, sendable
from jobs.sqs.calls import MAX_ENTRIES, Calls, Gathered
from jobs.sqs.dead_letters import dead_messages
from jobs.sqs.errors import LeaseOver
from jobs.sqs.leases import Lease, SqsLeases
from jobs.sqs.message import ASKED, job_of

logger = logging.getLogger(__name__)

# The longest that SQS waits for a message.
_POLL_S = 20
_LONGEST_PAUSE_S = 900.0


class Results(Protocol):
    """Where the ends of jobs are kept, for a queue forgets them."""

    def keep(self, ended: Job) -> None:
        """Have a job's output or error durable, the first of several alone.

        Blocks, and is called on several threads. Raises StoreUnavailable, QueueRefused.
        """


class SqsQueue:
    """The queue port on SQS; an endpoint is the URL of a queue.

    What another driver promises and SQS does not:

    - A message may be delivered twice, also while it is leased, and to two workers under the same
      attempt. So the end of a job is kept by `results`, where the first is the only one, and the
      message deleted after that. An attempt is fenced by its receipt handle and by this process's
      clock: SQS may say yes to a handle that is over.
    - Every receive counts as a loss, also one that was given back. After the queue's
      `maxReceiveCount` SQS moves the message to the dead-letter queue, at the next receive.
    - Messages come in about their order, and counts are about right. Nothing is known of jobs that
      have ended.
    - A message is a job's input alone: no policy, no webhook, no `extra`.

    In a FIFO queue each input is a group of its own, so that none waits for another; the same input
    sent twice in five minutes is one message. Used by one event loop; boto3 has threads.
    """

    def __init__(
        self,
        client: Any,
        results: Results | None = None,
        bodies: Bodies | None = None,
        *,
        pause_s: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take boto3's client; `pause_s` is before a lost job's second try, doubled each time."""
        self._calls = Calls(client)
        self._results = results
        self._bodies = bodies
        self._pause_s = pause_s
        self._monotonic = monotonic
        self._leases = SqsLeases(monotonic)
        self._facts: dict[str, QueueFacts] = {}
        self._gathered: dict[tuple[str, str], Gathered] = {}

    async def facts(self, endpoint: str) -> QueueFacts:
        """Return what a queue is like, as it was when it was first asked.

        Raises QueueRefused, StoreUnavailable.
        """
        if endpoint not in self._facts:
            self._facts[endpoint] = await facts(self._calls, endpoint)
        return self._facts[endpoint]

    async def enqueue(self, new: NewJob) -> Job:
        """Send a job's input. Raises QueueRefused, StoreUnavailable."""
        if new != NewJob(endpoint=new.endpoint, input=new.input):
            raise ValueError("a message of SQS carries a job's input and nothing else")
        known = await self.facts(new.endpoint)
        body = sendable(new.input)
        written = partial(entry, body, known.inline_bytes, self._bodies)
        # Only a long one has a bucket to wait for.
        short = len(body) <= known.inline_bytes
        message, size = written() if short else await self._calls.run(written)
        if known.fifo:
            name = hashlib.sha256(body).hexdigest()
            message |= {"MessageGroupId": name, "MessageDeduplicationId": name}
        sent = await self._of("send_message_batch", new.endpoint).ask(size, **message)
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
        busy: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` jobs, ten at the most, waiting for one in whole seconds.

        One that is `busy` has to wait for a job it has lost, as do all others, for a lease's time.
        To be cancelled while this waits costs what is on its way a lease's time.

        Raises QueueRefused, StoreUnavailable.
        """
        deadline = self._monotonic() + wait_s
        while True:
            left_s = max(0, math.ceil(deadline - self._monotonic()))
            answer = await self._calls.ask(
                "receive_message",
                endpoint,
                QueueUrl=endpoint,
                MaxNumberOfMessages=min(limit, MAX_ENTRIES),
                WaitTimeSeconds=min(left_s, _POLL_S),
                VisibilityTimeout=_seconds(lease_s),
                **ASKED,
            )
            until = self._monotonic() + lease_s
            found = [
                await self._take(endpoint, worker_id, message, until, busy=busy)
                for message in answer.get("Messages", ())
            ]
            jobs = [job for job in found if job is not None]
            if jobs or self._monotonic() >= deadline:
                return jobs

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Let a lease end no earlier than `lease_s` from now.

        False, too, where SQS lets nobody keep a message for longer: twelve hours after it was given
        out. Raises QueueRefused, StoreUnavailable.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        until = self._monotonic() + lease_s
        if until <= lease.until:
            return True
        try:
            await self._show_after(lease, lease_s)
        except LeaseOver:
            self._leases.end(lease)
            return False
        lease.until = max(lease.until, until)
        return True

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """Have a job's end kept, and then its message deleted.

        Raises:
            StoreUnavailable, QueueRefused: it has not ended, or is not deleted; the lease holds.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        if output is not None or error is not None:
            if self._results is None:
                raise ValueError("a queue has no place for the ends of jobs, and none is given")
            status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
            ended = lease.job.but(status=status, ended_at=time.time(), output=output, error=error)
            await self._calls.run(partial(self._results.keep, ended))
        try:
            gathered = self._of("delete_message_batch", lease.job.endpoint)
            await gathered.ask(ReceiptHandle=lease.handle)
        except LeaseOver:
            self._leases.end(lease)
            return False
        self._leases.end(lease)
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Give a job back: at once, and with a `reason` after a pause.

        Raises QueueRefused, StoreUnavailable: it comes back when its lease is over.
        """
        lease = self._leases.get(job_id, attempt)
        if lease is None:
            return False
        pause_s = 0.0
        if reason is not None:
            pause_s = min(self._pause_s * 2.0 ** min(attempt - 1, 20), _LONGEST_PAUSE_S)
            told = {"job_id": job_id}
            logger.warning("job %s was lost and waits again: %s", job_id, reason, extra=told)
        self._leases.end(lease)
        try:
            await self._show_after(lease, pause_s)
        except LeaseOver:
            return False
        return True

    async def dead(self, endpoint: str) -> Sequence[Job]:
        """Return jobs from the queue's dead-letter queue, a thousand at the most.

        They are received and given back, which counts as a receive there. Raises QueueRefused,
        StoreUnavailable.
        """
        known = await self.facts(endpoint)
        if known.dead_letters is None:
            return []
        found = await dead_messages(self._calls, await url_of(self._calls, known.dead_letters))
        error = f"the job was received {known.max_receives} times and not ended"
        return [
            (await self._calls.run(partial(job_of, endpoint, None, message, self._bodies))).but(
                status=JobStatus.FAILED, error=error
            )
            for message in found
        ]

    async def stats(self, endpoint: str) -> Stats:
        """Count what waits, what is leased and what is dead, about. Raises as `dead` does."""
        waiting, leased = await counts(self._calls, endpoint)
        found = {JobStatus.IN_QUEUE: waiting, JobStatus.IN_PROGRESS: leased}
        known = await self.facts(endpoint)
        if known.dead_letters is not None:
            dead_letters = await url_of(self._calls, known.dead_letters)
            found[JobStatus.FAILED] = sum(await counts(self._calls, dead_letters))
        return Stats(counts=found)

    def close(self) -> None:
        """Let the threads end when they have done what they are at."""
        self._calls.close()

    async def _take(
        self,
        endpoint: str,
        worker_id: str,
        message: Mapping[str, Any],
        until: float,
        *,
        busy: bool,
    ) -> Job | None:
        """Return the job of a message that nobody here has, and that can be read."""
        job_id, handle = message["MessageId"], message["ReceiptHandle"]
        if self._leases.renew(job_id, handle, until):
            # Delivered twice: of two handles the later is the one that counts.
            return None
        if busy and self._leases.has_lost(worker_id, job_id):
            return None
        try:
            job = await self._calls.run(partial(job_of, endpoint, worker_id, message, self._bodies))
        except JobsError as error:
            # It comes again, and after too many times it is dead.
            told = {"job_id": job_id}
            logger.error("message %s cannot be read: %s", job_id, error, extra=told)
            return None
        self._leases.begin(Lease(job, handle, until))
        return job

    async def _show_after(self, lease: Lease, seconds: float) -> None:
        gathered = self._of("change_message_visibility_batch", lease.job.endpoint)
        await gathered.ask(
            ReceiptHandle=lease.handle, VisibilityTimeout=_seconds(seconds) if seconds else 0
        )

    def _of(self, action: str, endpoint: str) -> Gathered:
        key = (action, endpoint)
        if key not in self._gathered:
            self._gathered[key] = Gathered(self._calls, action, endpoint)
        return self._gathered[key]


def _seconds(seconds: float) -> int:
    """Return what SQS takes: whole seconds, one at least."""
    return max(1, math.ceil(seconds))
