"""The messages of one event as a queue that others empty and delete from."""

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


def read_jobs(records: Sequence[Mapping[str, Any]], place: ResultBucket) -> list[Job]:
    """Return the jobs of an event's records, without those whose bodies cannot be read."""
    found = []
    for record in records:
        message = {
            "MessageId": record["messageId"],
            "Body": record["body"],
            "Attributes": record["attributes"],
            "MessageAttributes": record.get("messageAttributes", {}),
        }
        try:
            found.append(to_job(record["eventSourceARN"], None, message, place))
        except JobsError as error:
            message_id = record["messageId"]
            told = {"job_id": message_id}
            logger.error("message %s cannot be read: %s", message_id, error, extra=told)
    return found


class LambdaEventQueue:
    """What AWS Lambda has received, with leases that are Lambda's.

    Lambda deletes what is in `ended` and lets the rest come again. Owned by one event loop.
    """

    def __init__(self, jobs: Sequence[Job], results: BucketResultStore) -> None:
        self._waiting = deque(jobs)
        self._jobs = {job.id: job for job in jobs}
        self._results = results
        self.ended: set[str] = set()

    async def receive(
        self, endpoint: str, worker_id: str, *, lease_s: float, wait_s: float, limit: int
    ) -> list[Job]:
        """Return what is left: nothing more will come."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Lambda keeps them for as long as the function may run."""
        return True

    async def ack(self, job_id: str, attempt: int, *, output: Json | None = None) -> bool:
        """Have a job's end kept, and its message deleted. Raises JobsError."""
        if output is not None:
            await asyncio.to_thread(self._results.keep, self._jobs[job_id].replace(output=output))
        self.ended.add(job_id)
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Let a message come again."""
        if reason is not None:
            logger.warning("message %s comes again: %s", job_id, reason, extra={"job_id": job_id})
        return True
