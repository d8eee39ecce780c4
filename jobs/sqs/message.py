"""Conversion of SQS messages to jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jobs.model import Job, JobStatus
from jobs.sqs.bodies import SIZE_ATTRIBUTES, BodyStore, read_body

# Arguments of every receive request: the attributes that `to_job` needs.
RECEIVE_ATTRIBUTES = {
    "MessageSystemAttributeNames": ["ApproximateReceiveCount", "SentTimestamp"],
    "MessageAttributeNames": [*SIZE_ATTRIBUTES],
}


def to_job(
    endpoint: str, worker_id: str | None, message: Mapping[str, Any], bodies: BodyStore | None
) -> Job:
    """Convert a message to a worker's job; each receive is an attempt.

    Blocks while the body is read from a bucket. Raises QueueRefused, StoreUnavailable.
    """
    attributes = message["Attributes"]
    attempt = int(attributes["ApproximateReceiveCount"])
    sent_at = int(attributes["SentTimestamp"]) / 1000
    return Job(
        id=message["MessageId"],
        endpoint=endpoint,
        input=read_body(message["Body"], message.get("MessageAttributes", {}), bodies),
        created_at=sent_at,
        queued_at=sent_at,
        status=JobStatus.IN_PROGRESS,
        attempt=attempt,
        lost_attempts=attempt - 1,
        worker_id=worker_id,
        started_at=time.time(),
    )
