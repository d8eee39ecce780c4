"""The messages of one AWS Lambda event as a queue."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from batch.queue.result_bucket import ResultBucket
from batch.queue.result_store import BucketResultStore
from jobs import Job, JobsError, Json
from jobs.sqs.message import to_job

logger = logging.getLogger(__name__)


def read_jobs(records: Sequence[Mapping[str, Any]], bucket: ResultBucket) -> list[Job]:
    """Return the jobs of an event's records, without those whose bodies cannot be read."""
    jobs = []
    for record in records:
        message = {
            "MessageId": record["messageId"],
            "Body": record["body"],
            "Attributes": record["attributes"],
            "MessageAttributes": record.get("messageAttributes", {}),
        }
        try:
            jobs.append(to_job(record["eventSourceARN"], None, message, bucket))
        except JobsError as error:
            message_id = record["messageId"]
            fields = {"job_id": message_id}
            logger.error("message %s cannot be read: %s", message_id, error, extra=fields)
    return jobs


class LambdaEventQueue:
    """A queue of the messages that AWS Lambda received. Lambda holds their leases.

    Lambda deletes the messages in `finished`; SQS delivers the others again. Owned by one event
    loop.
    """

    def __init__(self, jobs: Sequence[Job], results: BucketResultStore) -> None:
        self._waiting = deque(jobs)
        self._jobs = {job.id: job for job in jobs}
        self._results = results
        self.finished: set[str] = set()

    async def receive(
        self, endpoint: str, worker_id: str, *, lease_s: float, wait_s: float, limit: int
    ) -> list[Job]:
        """Return up to `limit` of the remaining messages without waiting."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Return True: Lambda holds the lease for as long as the function may run."""
        return True

    async def ack(self, job_id: str, attempt: int, *, output: Json | None = None) -> bool:
        """Store a job's output, and have Lambda delete its message. Raises JobsError."""
        if output is not None:
            await asyncio.to_thread(self._results.keep, self._jobs[job_id].replace(output=output))
        self.finished.add(job_id)
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Leave a message to be delivered again."""
        if reason is not None:
            logger.warning(
                "message %s will be delivered again: %s", job_id, reason, extra={"job_id": job_id}
            )
        return True
